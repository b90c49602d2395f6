//! A prompt in the form of the model's own chat template: one user message, and the opening of the answer.
//!
//! Templates are written for Python's Jinja2 as transformers configures it (`apply_chat_template`), so this
//! does the same: its whitespace rules, methods of Python's strings and dicts, `raise_exception`, `tojson`,
//! `strftime_now`. The clock of `strftime_now` is fixed: the same request gives the same tokens on every day.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bundle::Bundle;
use configs::Suite;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use time::PrimitiveDateTime;
use time::macros::datetime;

use crate::asked::{Asked, Question};
use crate::{Failure, Request, Result};

/// The template's name in errors.
const NAME: &str = "chat template";
/// The date that Llama 3.2's template uses without a clock.
const TODAY: PrimitiveDateTime = datetime!(2024-07-26 12:00:00);
/// Instructions after which a template counts as endless. Those of published models take some hundreds.
const MOST_STEPS: u64 = 1_000_000;

/// The chat template of a model.
pub enum Chat {
    Here(Box<Template>),
    /// In a separate process.
    Apart(Asked),
}

impl Chat {
    /// The template of a prepared model.
    pub fn open(bundle: &Bundle) -> Result<Chat> {
        Template::open(bundle).map(|template| Chat::Here(Box::new(template)))
    }

    /// The text that the model is fed for `prompt`, special tokens included.
    pub fn render(&self, prompt: &str) -> Result<String> {
        match self {
            Chat::Here(template) => template.render(prompt),
            Chat::Apart(process) => {
                let text = process.text(&Question::Render { prompt: prompt.to_owned() })?;
                text.ok_or_else(|| Failure::failed("the chat template gave no text"))
            }
        }
    }
}

/// A template that is rendered in this process.
pub struct Template {
    model: String,
    environment: Environment<'static>,
    /// Texts of the special tokens, such as `bos_token`.
    tokens: BTreeMap<String, String>,
}

/// The parts of `tokenizer_config.json` that a bundle keeps.
#[derive(Deserialize)]
struct Stored {
    chat_template: String,
    #[serde(flatten)]
    tokens: BTreeMap<String, String>,
}

/// The file of a model's template, or why it has none.
pub fn file(bundle: &Bundle) -> Result<PathBuf> {
    let model = &bundle.manifest().name;
    if bundle.tokenizer().is_none() {
        return Err(Failure::usage(format!(
            "{model} has no tokenizer, and so no tokens for a chat: leave out --chat, or take a model that has one"
        )));
    }
    bundle.chat_template().ok_or_else(|| {
        Failure::usage(format!(
            "{model} has no chat template: leave out --chat, or take a model that was tuned for chats"
        ))
    })
}

impl Template {
    fn open(bundle: &Bundle) -> Result<Template> {
        let model = &bundle.manifest().name;
        let Stored { chat_template, tokens } = read(&file(bundle)?)?;
        Template::new(model, &chat_template, tokens)
    }

    fn new(model: &str, template: &str, tokens: BTreeMap<String, String>) -> Result<Template> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MOST_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        let chat = |environment| Template { model: model.to_owned(), environment, tokens };
        match environment.add_template_owned(NAME, without_markers(template)) {
            Ok(()) => Ok(chat(environment)),
            Err(error) => Err(chat(environment).fails(&error)),
        }
    }

    fn render(&self, prompt: &str) -> Result<String> {
        let mut values: BTreeMap<&str, Value> = BTreeMap::new();
        values.extend(self.tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str()))));
        values.insert("messages", Value::from(vec![context! { role => "user", content => prompt }]));
        values.insert("add_generation_prompt", Value::from(true));
        // transformers' values if none are given.
        values.extend(["tools", "documents"].map(|name| (name, Value::from(()))));
        let template = self.environment.get_template(NAME).expect("it was added when this was made");
        template.render(values).map_err(|error| self.fails(&error))
    }

    fn fails(&self, error: &Error) -> Failure {
        let reason = match error.kind() {
            ErrorKind::OutOfFuel => "it does not come to an end".to_owned(),
            _ => error.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
        };
        Failure::usage(format!("the chat template of {} fails: {reason}; leave out --chat", self.model))
    }
}

/// Rejects requests for which the template's output would have to be changed.
pub(crate) fn check(request: &Request, suite: &Suite) -> Result<()> {
    if !request.chat {
        return Ok(());
    }
    let has_length = !request.prompt_tokens.is_empty() || !request.prompt_lengths.is_empty();
    if has_length {
        return Err(Failure::usage(
            "--chat makes a prompt as long as the model's template does, and here it is to have a length of its own \
             (--prompt-tokens, --prompt-lengths, or a sweep over lengths): leave one out",
        ));
    }
    if suite.prompts.iter().any(|prompt| prompt.text.is_none()) {
        return Err(Failure::usage("--chat needs prompts that are texts, and one is given as token ids"));
    }
    Ok(())
}

/// The output for a prompt that was put through a template.
pub fn line(name: &str, text: &str, tokens: &[u32]) -> String {
    let ids: Vec<_> = tokens.iter().map(u32::to_string).collect();
    format!("{name} as a chat: {text:?}, {} tokens: {}", ids.len(), ids.join(" "))
}

fn read(path: &Path) -> Result<Stored> {
    let cannot = |reason: String| Failure::usage(format!("cannot read {}: {reason}", path.display()));
    let bytes =
        untrusted::file::read(path, untrusted::file::CONFIG).map_err(|error| cannot(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| cannot(error.to_string()))
}

/// transformers marks assistant messages with `{% generation %}`, for training. Here the tags have no effect.
fn without_markers(template: &str) -> String {
    const TAGS: [(&str, &str); 2] = [("endgeneration", "endif"), ("generation", "if true")];
    let mut pieces = template.split("{%");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        text += "{%";
        let tag = piece.trim_start_matches(['-', '+']).trim_start();
        let marker = TAGS.iter().find_map(|&(name, instead)| {
            let rest = tag.strip_prefix(name)?;
            rest.trim_start().trim_start_matches(['-', '+']).starts_with("%}").then_some((instead, rest))
        });
        match marker {
            Some((instead, rest)) => {
                text += &piece[..piece.len() - tag.len()];
                text = text + " " + instead + " " + rest.trim_start();
            }
            None => text += piece,
        }
    }
    text
}

fn raise_exception(reason: String) -> std::result::Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, reason))
}

fn strftime_now(format: &str) -> std::result::Result<String, Error> {
    let cannot = |reason: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {reason}"));
    let format = time::format_description::parse_strftime_owned(format).map_err(|e| cannot(e.to_string()))?;
    TODAY.format(&format).map_err(|e| cannot(e.to_string()))
}

/// As Python's `json.dumps`, without escapes for HTML.
fn to_json(value: Value, options: Kwargs) -> std::result::Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let cannot = |e: serde_json::Error| Error::new(ErrorKind::InvalidOperation, format!("tojson: {e}"));
    let mut json = Vec::new();
    match indent {
        Some(spaces) => {
            let spaces = " ".repeat(spaces.min(16));
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut json, formatter)).map_err(cannot)?;
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut json, Spaced)).map_err(cannot)?,
    }
    Ok(Value::from_safe_string(String::from_utf8(json).expect("JSON is UTF-8")))
}

/// A space after every comma and colon, as in Python's JSON.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: std::io::Write + ?Sized>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, to: &mut W) -> std::io::Result<()> {
        to.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(template: &str) -> Result<Template> {
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let tokens = tokens.map(|(name, token)| (name.to_owned(), token.to_owned()));
        Template::new("mine", template, tokens.into())
    }

    fn rendered(template: &str) -> String {
        chat(template).unwrap().render("Hello <you>").unwrap()
    }

    fn failure(template: &str) -> String {
        let failure = chat(template).and_then(|chat| chat.render("Hello")).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        failure.to_string()
    }

    #[test]
    fn a_prompt_is_a_message_of_the_user_s_and_the_answer_s_opening() {
        let template = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
            {{ '<|im_start|>system\\nHelp.<|im_end|>\\n' }}{% endif %}\
            {{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}\
            {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
        let expected = "<|im_start|>system\nHelp.<|im_end|>\n<|im_start|>user\nHello <you><|im_end|>\n\
            <|im_start|>assistant\n";
        assert_eq!(rendered(template), expected);
    }

    #[test]
    fn special_tokens_are_the_model_s_and_methods_are_python_s() {
        let template =
            "{{ bos_token }}[INST] {{ messages[0].content.strip().upper() }} [/INST]{{ pad_token }}";
        assert_eq!(rendered(template), "<s>[INST] HELLO <YOU> [/INST]");
    }

    #[test]
    fn lines_that_hold_a_tag_alone_leave_nothing() {
        assert_eq!(rendered("a\n  {% if tools is not none %}\nb\n  {% endif %}\nc\n"), "a\nc");
    }

    #[test]
    fn json_is_as_python_writes_it() {
        assert_eq!(
            rendered("{{ messages[0] | tojson }}{{ [1] | tojson(indent=2) }}"),
            "{\"role\": \"user\", \"content\": \"Hello <you>\"}[\n  1\n]"
        );
    }

    #[test]
    fn today_is_the_same_on_every_day() {
        assert_eq!(rendered("{{ strftime_now('%d %B %Y') }}"), "26 July 2024");
    }

    #[test]
    fn marks_for_training_mean_nothing() {
        assert_eq!(rendered("a {%- generation -%} b {% endgeneration %} generation"), "ab  generation");
    }

    #[test]
    fn a_template_that_refuses_is_told_in_its_own_words() {
        let told = failure("{{ raise_exception('only\n  assistants may speak') }}");
        assert!(told.starts_with("the chat template of mine fails: "), "{told}");
        assert!(told.contains("only assistants may speak") && !told.contains('\n'), "{told}");
    }

    #[test]
    fn a_template_that_does_not_parse_is_told_with_its_line() {
        let told = failure("{{ bos_token }}\n{% for %}");
        assert!(told.contains("syntax error") && told.contains("chat template:2"), "{told}");
    }

    #[test]
    fn an_endless_template_is_told() {
        let told = failure("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}");
        assert!(told.contains("does not come to an end"), "{told}");
    }
}
