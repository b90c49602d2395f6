//! A prompt that one framework continues: the common part of `generate` and `denoise`.

use plan::chat;
use plan::prompts::{self, Text};
use plan::{Failure, Result};
use serde_json::{Value, json};

use crate::cli::{ChatFlag, Format};
use crate::commands::single::Single;
use crate::output::print;

/// Refuses flags that do not go together. `prompt`: the text, if one is given.
pub(super) fn check(command: &str, format: Format, chat: ChatFlag, prompt: Option<&str>) -> Result<()> {
    if matches!(format, Format::Markdown | Format::Csv) {
        return Err(Failure::usage(format!("{command} prints a table (the text alone) or json")));
    }
    chat.check(prompt)
}

/// A prompt as token ids, with the tokenizer of its model.
pub(super) struct Prompt {
    pub(super) tokens: Vec<u32>,
    text: Text,
    /// The chat's text, if the prompt was put through a template.
    chat: Option<String>,
}

impl Prompt {
    /// The ids of a text, put through the chat template if that is requested, or the given ids. Refuses a
    /// prompt that the model cannot take with so many new tokens after it, and an empty prompt for the reason
    /// `why`.
    pub(super) fn resolve(
        single: &Single,
        (prompt, tokens): (Option<&str>, &[u32]),
        flag: ChatFlag,
        new_tokens: usize,
        why: &str,
    ) -> Result<Prompt> {
        let text = measure::apart::text(&single.bundle)?;
        let (chat, tokens) = match prompt {
            None => (None, tokens.to_vec()),
            Some(prompt) if !flag.chat => (None, text.encode(prompt)?),
            Some(prompt) => {
                let fed = measure::apart::chat(&single.bundle)?.render(prompt)?;
                let ids = text.encode(&fed)?;
                untrusted::say!("{}", chat::line("the prompt", &fed, &ids));
                (Some(fed), ids)
            }
        };
        if tokens.is_empty() {
            return Err(Failure::usage(format!("the prompt is empty: {why}")));
        }
        prompts::check_vocabulary(&tokens, single.bundle.config())?;
        plan::work::check_context(tokens.len(), new_tokens, single.bundle.config())?;
        Ok(Prompt { tokens, text, chat })
    }

    /// Prints the tokens after the prompt: their text, or an object that also has the fields of `more`.
    pub(super) fn print(&self, single: &Single, tokens: &[u32], format: Format, more: Value) -> Result<()> {
        let text = self.text.decode(tokens)?;
        let output = match format {
            Format::Json => {
                let mut object = json!({
                    "framework": single.contender.label,
                    "precision": single.contender.precision.name(),
                    "prompt_tokens": self.tokens,
                    "tokens": tokens,
                    "text": text,
                });
                let more = more.as_object().into_iter().flatten();
                more.for_each(|(name, value)| object[name] = value.clone());
                if let Some(chat) = &self.chat {
                    object["chat"] = chat.as_str().into();
                }
                object.to_string()
            }
            _ => text.map_or_else(|| format!("{tokens:?}"), |text| untrusted::lines(&text).into_owned()),
        };
        print(&(output + "\n"))
    }
}
