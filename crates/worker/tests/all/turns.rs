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
fn what_precedes_a_request_is_done_before_it_is_asked_for() {
    let directory = directory();
    let mut measure = measure();
    measure.lead_in = 3;
    let job = job(directory.path(), Task::Measure(measure));
    let [prepare, request] = [Turn::Prepare { case: 0 }, Turn::request(0)].map(|turn| line(&turn));
    let finish = line(&Turn::Finish(Finish::default()));
    let events = serve_lines(&job, &(prepare.clone() + &request + &finish));
    let place = |is_it: fn(&Event) -> bool| events.iter().position(is_it).unwrap();
    let ready = place(|event| matches!(event, Event::Ready(ready) if ready.case == 0));
    assert_eq!(place(|event| matches!(event, Event::Sample(_))), ready + 1);
    let alone = serve_lines(&job, &(request + &finish));
    assert_eq!(
        samples(&alone)[0].output,
        samples(&events)[0].output,
        "one that was not prepared is prepared first"
    );
    let under_way = serve_lines(&job, &(line(&Turn::slice(0, 1)) + &prepare));
    let Some(Event::Failed(failed)) = under_way.last() else { panic!("{under_way:?}") };
    assert!(failed.reason.contains("is under way"), "{failed:?}");
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
