//! `--hello`: one line, and the end.

use protocol::Hello;

use super::{Need, Ran, conversation};
use crate::events;
use crate::problem::Problem;
use crate::shape;
use crate::{Interrupted, Subject};

pub(super) fn hello(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    conversation(subject, &["--hello"], (&["hello"], Need::Must), |talk| {
        talk.close_input();
        let object = talk.hello()?;
        let line = talk.line();
        let fields = events::fields("hello").unwrap_or_default();
        talk.note_all(line, shape::problems(fields, &object));
        let hello = serde_json::from_value::<Hello>(object.into()).ok();
        if let Some(hello) = &hello {
            talk.note_all(line, rules(hello));
        }
        talk.end("the line for --hello", false)?;
        Ok(hello.map_or_else(String::new, |hello| {
            format!("{} ({}, {}), protocol {}", hello.framework, hello.binding, hello.library, hello.protocol)
        }))
    })
}

fn rules(hello: &Hello) -> Vec<Problem> {
    let mut found: Vec<Problem> = version(hello.protocol).into_iter().collect();
    if hello.framework.trim().is_empty() {
        let text = "empty; send the `framework` of its file in configs/engines";
        found.push(Problem::at("framework", text));
    }
    if hello.build.profile == "debug" {
        let text = "\"debug\", which rule R10 strikes; build it optimised, and send \"release\"";
        found.push(Problem::at("build.profile", text));
    }
    found
}

/// A version of the protocol that this driver does not speak.
pub(super) fn version(theirs: u32) -> Option<Problem> {
    let ours = protocol::VERSION;
    let text = format!(
        "{theirs}, but this driver speaks {ours}; follow docs/reference/protocol.md, and send {ours}"
    );
    (theirs != ours).then(|| Problem::at("protocol", text))
}
