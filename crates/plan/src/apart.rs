//! The answers of a process that runs a model's tokenizer and chat template.

use std::io::{BufRead, Result as IoResult, Write};
use std::time::Instant;

use bundle::Bundle;

use crate::asked::{Answer, Question};
use crate::chat::Chat;
use crate::prompts::Text;
use crate::{Failure, Result};

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
        Question::Encode { text: asked } => text.encode(asked).map(Answer::Tokens),
        Question::EncodeWhole { text: asked, pair } => {
            text.encode_whole(asked, pair.as_deref()).map(Answer::Whole)
        }
        Question::Decode { tokens } => text.decode(tokens).map(Answer::Text),
        Question::Time { texts } => text.time(texts, now).map(Answer::Time),
        Question::Render { .. } => unreachable!("it was answered above"),
    }
}
