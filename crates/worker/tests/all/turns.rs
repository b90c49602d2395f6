//! The results of turns: requests, whole and in slices.

use protocol::{Event, FailureKind, Finish, Task, Turn};

use crate::support::fixture::job;
use crate::support::{line, serve_lines};
use crate::tasks::{directory, measure, samples};

#[test]
fn a_request_is_answered_before_the_next_turn_is_read() {
    let directory = directory();
    let job = job(directory.path(), Task::Measure(measure()));
    let twice = serve_lines(&job, &line(&Turn::request(0)).repeat(2));
    assert_eq!(samples(&twice).len(), 2, "what was asked for is there, though the turns broke off");
    let Some(Event::Failed(failed)) = twice.last() else { panic!("{twice:?}") };
    assert_eq!(failed.reason, "the turns ended without a finish");
}

#[test]
fn turns_that_make_no_sense_are_refused() {
    let directory = directory();
    for (line, reason) in
        [("{\"turn\":\"request\",\"case\":1}\n", "there are 1"), ("nonsense\n", "does not parse")]
    {
        let events = serve_lines(&job(directory.path(), Task::Measure(measure())), line);
        let Some(Event::Failed(failed)) = events.last() else { panic!("{events:?}") };
        assert!(failed.kind == FailureKind::Input && failed.reason.contains(reason), "{failed:?}");
    }
}

#[test]
fn a_request_in_slices_is_the_request_and_its_pauses_are_in_no_mark() {
    let directory = directory();
    let job = job(directory.path(), Task::Measure(measure()));
    let slice = |marks| line(&Turn::slice(0, marks));
    let finish = line(&Turn::Finish(Finish::default()));
    let whole = serve_lines(&job, &(line(&Turn::request(0)) + &finish));
    let sliced = serve_lines(&job, &(slice(1) + &slice(1) + &slice(9) + &finish));
    let going: Vec<usize> = sliced
        .iter()
        .filter_map(|event| match event {
            Event::Slice(slice) => Some(slice.marks),
            _ => None,
        })
        .collect();
    assert_eq!(going, [1, 2]);
    let (whole, sliced) = (samples(&whole)[0], samples(&sliced)[0]);
    assert_eq!((&whole.output, whole.marks_ns.len()), (&sliced.output, sliced.marks_ns.len()));
    for (lines, reason) in
        [(slice(0), "at least one mark"), (slice(1) + &line(&Turn::request(0)), "is under way")]
    {
        let events = serve_lines(&job, &lines);
        let Some(Event::Failed(failed)) = events.last() else { panic!("{events:?}") };
        assert!(failed.kind == FailureKind::Input && failed.reason.contains(reason), "{failed:?}");
    }
}
