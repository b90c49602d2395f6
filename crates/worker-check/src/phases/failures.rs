//! How a worker reacts to an impossible job, and to the end of the driver: it says so and ends.

use protocol::{Failed, Job, Task};
use serde_json::Value;

use super::{Need, Ran, conversation, send_job};
use crate::problem::Problem;
use crate::talk::Stop;
use crate::{Interrupted, Outcome, Subject};

/// The order of events: `failed` may be sent before or after `hello`.
const ORDER: &[&str] = &["hello", "started", "loaded", "failed"];

pub(super) fn failures(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let version = refuses(subject, "a job of another protocol", |subject| {
        let job = subject.job(Task::Load);
        Job { protocol: protocol::VERSION + 1, ..job }
    })?;
    if !matches!(version.outcome, Outcome::Holds(_)) {
        return Ok(version);
    }
    refuses(subject, "a bundle that is not there", |subject| {
        let job = subject.job(Task::Load);
        Job { bundle: format!("{}/not-there", job.bundle), ..job }
    })
}

/// Sends an impossible job. The worker must answer `failed` and exit with a failure.
fn refuses(
    subject: &Subject<'_>,
    what: &'static str,
    job: impl FnOnce(&Subject<'_>) -> Job,
) -> Result<Ran, Interrupted> {
    conversation(subject, &[], (ORDER, Need::Must), |talk| {
        send_job(talk, &job(subject));
        loop {
            let object = talk.object(&format!("`failed`, the answer to {what},"))?;
            match object.get("event").and_then(Value::as_str) {
                Some("failed") => {
                    let _: Option<Failed> = talk.read("failed", object);
                    break;
                }
                // It may find out after it has begun.
                Some("hello" | "started") => {}
                found => {
                    let text = format!(
                        "{} in answer to {what}; send {{\"event\": \"failed\", \"kind\": \"input\", \"reason\": …}} \
                         and exit with 1",
                        found.map_or("a line that is no event".to_owned(), |name| format!("`{name}`"))
                    );
                    talk.note(Problem::new(text));
                    return Err(Stop::Broken);
                }
            }
        }
        talk.end("`failed`", true)?;
        Ok("what cannot be done is answered by `failed` and exit code 1".to_owned())
    })
}
