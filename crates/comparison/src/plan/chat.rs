//! A prompt in the form of the model's own chat template: one user message, and the opening of the answer.
//!
//! Templates are written for Python's Jinja2 as transformers configures it (`apply_chat_template`), so this
//! does the same: its whitespace rules, methods of Python's strings and dicts, `raise_exception`, `tojson`,
//! `strftime_now`. The clock of `strftime_now` is fixed: the same request gives the same tokens on every day.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, Result as IoResult, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bundle::Bundle;
use configs::Suite;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use protocol::untrusted;
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use time::PrimitiveDateTime;
use time::macros::datetime;

use crate::plan::prompts::{self, Text};
use crate::plan::{Failure, Request, Result};

/// The template's name in errors.
const NAME: &str = "chat template";

/// The date that Llama 3.2's template uses without a clock.
const TODAY: PrimitiveDateTime = datetime!(2024-07-26 12:00:00);

/// Instructions after which a template counts as endless. Those of published models take some hundreds.
const MOST_STEPS: u64 = 1_000_000;

pub enum Chat {
    Here(Box<Template>),
    Apart(Asked),
}

impl Chat {
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
            "{}; so there are no tokens for a chat: leave out --chat",
            prompts::absent(bundle)
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
        match environment.add_template_owned(NAME, with_formats(&without_markers(template))) {
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

/// Python's `'%s' % x` is a filter for minijinja: `'%s'|format(x)`.
fn with_formats(template: &str) -> String {
    let (mut text, mut rest, mut in_tag) = (String::new(), template, false);
    while let Some(first) = rest.chars().next() {
        let opens = ["{{", "{%"].iter().any(|mark| rest.starts_with(mark));
        let closes = ["}}", "%}"].iter().any(|mark| rest.starts_with(mark));
        let length = match first {
            '{' if !in_tag && rest.starts_with("{#") => rest.find("#}").map_or(rest.len(), |end| end + 2),
            _ if !in_tag && opens || in_tag && closes => 2,
            '"' | '\'' if in_tag => literal(rest),
            _ => first.len_utf8(),
        };
        in_tag = if in_tag { !closes } else { opens };
        let (piece, behind) = rest.split_at(length);
        (text, rest) = (text + piece, behind);
        let after = rest.trim_start().strip_prefix('%').filter(|after| !after.starts_with('}'));
        if let ('"' | '\'', true, Some(after)) = (first, in_tag, after) {
            let after = after.trim_start();
            let (operand, behind) = after.split_at(operand(after));
            let is_tuple = operand.starts_with('(') && bracketed(operand) == operand.len();
            text += &if is_tuple { format!("|format{operand}") } else { format!("|format({operand})") };
            rest = behind;
        }
    }
    text
}

/// The length of the string that a text begins with.
fn literal(text: &str) -> usize {
    let quote = text.chars().next();
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, letter)| {
        let ends = !is_escaped && Some(letter) == quote;
        is_escaped = !is_escaped && letter == '\\';
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// The length of the operand that a text begins with: what is in brackets, a string, or a name; with the calls, fields and
/// filters behind it.
fn operand(text: &str) -> usize {
    let mut at = 0;
    while let Some(letter) = text[at..].chars().next() {
        let behind = text[at..].trim_start();
        at = match letter {
            '"' | '\'' => at + literal(&text[at..]),
            '(' | '[' => at + bracketed(&text[at..]),
            _ if letter.is_alphanumeric() || "_.".contains(letter) => at + letter.len_utf8(),
            _ if behind.starts_with('|') => text.len() - behind[1..].trim_start().len(),
            _ => break,
        };
    }
    at
}

/// The length of the part of a text up to the end of the bracket that it begins with.
fn bracketed(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(letter) = text[at..].chars().next() {
        at += if "\"'".contains(letter) { literal(&text[at..]) } else { letter.len_utf8() };
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' if depth == 1 => break,
            ')' | ']' => depth -= 1,
            _ => {}
        }
    }
    at
}

fn raise_exception(reason: String) -> std::result::Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, reason))
}

fn strftime_now(format: &str) -> std::result::Result<String, Error> {
    let cannot = |reason: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {reason}"));
    let format = time::format_description::parse_strftime_owned(format).map_err(|e| cannot(e.to_string()))?;
    TODAY.format(&format).map_err(|e| cannot(e.to_string()))
}

/// As Python's `json.dumps` with the options that transformers gives it, without escapes for HTML.
fn to_json(value: Value, options: Kwargs) -> std::result::Result<Value, Error> {
    let indent = options.get::<Option<usize>>("indent")?.map(|spaces| " ".repeat(spaces.min(16)));
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (sorts, is_ascii): (Option<bool>, Option<bool>) =
        (options.get("sort_keys")?, options.get("ensure_ascii")?);
    options.assert_all_used()?;
    let cannot = |why: &dyn fmt::Display| Error::new(ErrorKind::InvalidOperation, format!("tojson: {why}"));
    let style = (indent.as_deref(), separators.as_deref());
    let json = match sorts {
        Some(true) => serde_json::to_value(&value).and_then(|value| written(&sorted(value), style)),
        _ => written(&value, style),
    };
    let json = json.map_err(|why| cannot(&why))?;
    Ok(Value::from_safe_string(if is_ascii == Some(true) { ascii(&json) } else { json }))
}

/// JSON in lines with this indentation, or in one line with these texts between items and behind keys.
fn written(
    value: &impl Serialize,
    (indent, separators): (Option<&str>, Option<&[String]>),
) -> serde_json::Result<String> {
    let mut json = Vec::new();
    match (indent, separators) {
        (None, None) => value.serialize(&mut Serializer::with_formatter(&mut json, Separated(", ", ": ")))?,
        (None, Some([item, key])) => {
            value.serialize(&mut Serializer::with_formatter(&mut json, Separated(item, key)))?;
        }
        (Some(indent), None) => {
            let lines = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut json, lines))?;
        }
        _ => {
            let why = "separators are two texts, and of JSON in one line";
            return Err(serde_json::Error::io(std::io::Error::other(why)));
        }
    }
    Ok(String::from_utf8(json).expect("JSON is UTF-8"))
}

fn sorted(value: serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Array(values) => values.into_iter().map(sorted).collect(),
        serde_json::Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.into_iter().collect();
            fields.into_iter().map(|(name, value)| (name, sorted(value))).collect()
        }
        value => value,
    }
}

/// All other characters are within strings.
fn ascii(json: &str) -> String {
    let escaped = |letter: char| match letter.is_ascii() {
        true => letter.to_string(),
        false => letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    };
    json.chars().map(escaped).collect()
}

struct Separated<'a>(&'a str, &'a str);

impl Formatter for Separated<'_> {
    fn begin_array_value<W: Write + ?Sized>(&mut self, to: &mut W, first: bool) -> IoResult<()> {
        if first { Ok(()) } else { to.write_all(self.0.as_bytes()) }
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, to: &mut W, first: bool) -> IoResult<()> {
        if first { Ok(()) } else { to.write_all(self.0.as_bytes()) }
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, to: &mut W) -> IoResult<()> {
        to.write_all(self.1.as_bytes())
    }
}

// The answers of a process that runs a model's tokenizer and chat template.

/// Answers every question about a model until there are no more. `now`: the clock.
///
/// # Errors
/// A line that cannot be read or written.
pub fn serve(
    bundle: &Bundle,
    input: impl BufRead,
    mut output: impl Write,
    now: fn() -> Instant,
) -> IoResult<()> {
    let (mut text, mut chat) = (None, None);
    for line in input.lines() {
        let question: Question = serde_json::from_str(&line?)?;
        let answer =
            answer(bundle, (&mut text, &mut chat), &question, now).unwrap_or_else(|failure| match failure {
                Failure::Usage(reason) => Answer::Refused(reason),
                failure => Answer::Failed(failure.to_string()),
            });
        writeln!(output, "{}", serde_json::to_string(&answer)?)?;
        output.flush()?;
    }
    Ok(())
}

fn answer(
    bundle: &Bundle,
    (text, chat): (&mut Option<Text>, &mut Option<Chat>),
    question: &Question,
    now: fn() -> Instant,
) -> Result<Answer> {
    if let Question::Render { prompt } = question {
        if chat.is_none() {
            *chat = Some(Chat::open(bundle)?);
        }
        let chat = chat.as_ref().expect("it was just opened");
        return chat.render(prompt).map(|text| Answer::Text(Some(text)));
    }
    if text.is_none() {
        *text = Some(Text::open(bundle)?);
    }
    let text = text.as_ref().expect("it was just opened");
    match question {
        Question::Ids { text: asked, pair, special } => {
            text.ids(asked, pair.as_deref(), *special).map(Answer::Ids)
        }
        Question::Decode { tokens } => text.decode(tokens).map(Answer::Text),
        Question::Time { texts } => text.time(texts, now).map(Answer::Time),
        Question::Render { .. } => unreachable!("it was answered above"),
    }
}

// Text processing in a separate process. A tokenizer or a chat template comes with a model and may use any
// amount of memory, time or stack; it must not end this program. Questions and answers are lines of JSON.

/// A question to a model's tokenizer or template.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Question {
    /// The ids and types of a text, or of a pair of texts; `special`: with the model's special tokens around it.
    Ids { text: String, pair: Option<String>, special: bool },
    /// The text of ids.
    Decode { tokens: Vec<u32> },
    /// The time to compute the ids of all these texts, in nanoseconds.
    Time { texts: Vec<Written> },
    /// The text that the model is fed for a prompt.
    Render { prompt: String },
}

/// A text, or a pair of texts, as a person writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub text: String,
    pub pair: Option<String>,
}

/// Ids of a text, or of a pair of texts, with the model's special tokens around it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whole {
    pub tokens: Vec<u32>,
    /// The type of each token; all 0 where it is empty.
    pub types: Vec<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Ids(Whole),
    Text(Option<String>),
    Time(Option<u64>),
    /// Why there is none: a mistake in the input.
    Refused(String),
    /// Why there is none: an internal failure.
    Failed(String),
}

/// A client of such a process.
pub trait Apart: Send + Sync {
    /// # Errors
    /// Why there is no answer, in one sentence.
    fn ask(&self, question: &Question) -> Result<Answer>;
}

/// A process to which questions are sent.
#[derive(Clone)]
pub struct Asked(pub Arc<dyn Apart>);

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a process of its own")
    }
}

impl Asked {
    fn answer(&self, question: &Question) -> Result<Answer> {
        match self.0.ask(question)? {
            Answer::Refused(reason) => Err(Failure::usage(reason)),
            Answer::Failed(reason) => Err(Failure::failed(reason)),
            answer => Ok(answer),
        }
    }

    pub(crate) fn ids(&self, question: &Question) -> Result<Whole> {
        match self.answer(question)? {
            Answer::Ids(ids) => Ok(ids),
            _ => Err(Failure::failed("something else in the place of tokens and their types")),
        }
    }

    pub(crate) fn time(&self, question: &Question) -> Result<Option<u64>> {
        match self.answer(question)? {
            Answer::Time(time) => Ok(time),
            _ => Err(Failure::failed("something else in the place of a time")),
        }
    }

    pub(crate) fn text(&self, question: &Question) -> Result<Option<String>> {
        match self.answer(question)? {
            Answer::Text(text) => Ok(text),
            _ => Err(Failure::failed("tokens in the place of a text")),
        }
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
    fn templates_are_rendered_as_python_does() {
        let format = "100 % {{ '%s' % 1 }} {{ 'a' + \"%02d}}\" % messages[0]['content'].split(')')|length }} {# 'a' % b #}\
            {{ '%s-%s' % (1, 'b') }} {{ 7 % 4 }} {%- if 'a' %} x{% endif %}";
        for (what, template, expected) in [
            ("special tokens of the model", "{{ bos_token }}[INST]{{ pad_token }}", "<s>[INST]"),
            ("methods", "{{ messages[0].content.strip().upper() }}", "HELLO <YOU>"),
            ("a tag alone in a line", "a\n  {% if tools is not none %}\nb\n  {% endif %}\nc\n", "a\nc"),
            ("JSON", "{{ messages[0] | tojson }}", r#"{"role": "user", "content": "Hello <you>"}"#),
            ("indented JSON", "{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
            (
                "sorted JSON",
                "{{ {'b': [1, 2], 'a': 'é'} | tojson(separators=(',', ':'), sort_keys=true) }}",
                r#"{"a":"é","b":[1,2]}"#,
            ),
            ("escaped JSON", "{{ '𝄞é' | tojson(ensure_ascii=true) }}", r#""\ud834\udd1e\u00e9""#),
            ("formats", format, "100 % 1 a01}} 1-b 3 x"),
            ("the same day on every day", "{{ strftime_now('%d %B %Y') }}", "26 July 2024"),
            ("marks for training", "a {%- generation -%} b {% endgeneration %} generation", "ab  generation"),
        ] {
            assert_eq!(rendered(template), expected, "{what}");
        }
    }

    #[test]
    fn a_template_that_fails_is_told_in_one_sentence() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        for (template, said) in [
            ("{{ raise_exception('only\n  assistants may speak') }}", "only assistants may speak"),
            ("{{ raise_exception('no') }}", "the chat template of mine fails: "),
            ("{{ 1 | tojson(default=2) }}", "default"),
            ("{{ bos_token }}\n{% for %}", "syntax error"),
            ("{{ bos_token }}\n{% for %}", "chat template:2"),
            (endless, "does not come to an end"),
        ] {
            let told = failure(template);
            assert!(told.contains(said) && !told.contains('\n'), "{said}: {told}");
        }
    }
}
