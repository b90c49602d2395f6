//! The results of turns: requests, whole and in slices.

use protocol::{Continued, Event, Finish, Input, Task, Turn, Work};

use crate::support::fixture::job;
use crate::support::{line, refusal, serve_lines};
use crate::tasks::{directory, measure, samples};

#[test]
fn a_request_is_answered_before_the_next_turn_is_read() {
    let directory = directory();
    let job = job(directory.path(), Task::Measure(measure()));
    let twice = serve_lines(&job, &line(&Turn::request(0)).repeat(2));
    assert_eq!(samples(&twice).len(), 2, "what was asked for is there, though the turns broke off");
    assert_eq!(refusal(&twice), "the turns ended without a finish");
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
    assert!(refusal(&under_way).contains("is under way"), "{under_way:?}");
}

#[test]
fn turns_that_make_no_sense_are_refused() {
    let directory = directory();
    for (line, reason) in
        [("{\"turn\":\"request\",\"case\":1}\n", "there are 1"), ("nonsense\n", "does not parse")]
    {
        let events = serve_lines(&job(directory.path(), Task::Measure(measure())), line);
        assert!(refusal(&events).contains(reason), "{events:?}");
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
    let marks = |event: &Event| if let Event::Slice(slice) = event { Some(slice.marks) } else { None };
    assert_eq!(sliced.iter().filter_map(marks).collect::<Vec<_>>(), [1, 2]);
    let (whole, sliced) = (samples(&whole)[0], samples(&sliced)[0]);
    assert_eq!((&whole.output, whole.marks_ns.len()), (&sliced.output, sliced.marks_ns.len()));
    for (lines, reason) in
        [(slice(0), "at least one mark"), (slice(1) + &line(&Turn::request(0)), "is under way")]
    {
        let events = serve_lines(&job, &lines);
        assert!(refusal(&events).contains(reason), "{events:?}");
    }
}

#[test]
fn a_request_may_be_given_other_tokens_slice_by_slice_or_feed_itself() {
    let directory = directory();
    let job = job(directory.path(), Task::Measure(measure()));
    let finish = line(&Turn::Finish(Finish::default()));
    let ask = |turns: &[Turn]| serve_lines(&job, &(turns.iter().map(line).collect::<String>() + &finish));
    let Work::Generate(work) = measure().work else { panic!("it continues prompts") };
    let (own, new_tokens) = (&work.cases[0], work.new_tokens);
    let prompts: Vec<Vec<u32>> =
        own.prompts.iter().map(|row| row.iter().map(|token| token ^ 1).collect()).collect();
    let trace: Vec<Vec<u32>> =
        own.trace.iter().map(|row| row.iter().map(|token| token ^ 1).collect()).collect();
    let sent = |prompts: &[Vec<u32>], trace: Vec<Vec<u32>>| {
        Some(Input::Continue(Continued { prompts: prompts.to_vec(), trace, turn: None }))
    };
    let request = |input| Turn::Request { case: 0, input };
    let slice = |marks, input| Turn::Slice { case: 0, marks, input };
    let output = |turns: &[Turn]| samples(&ask(turns)).pop().expect("it answers").output.clone();

    let own_output = output(&[request(None)]);
    assert_eq!(own_output, output(&[request(sent(&own.prompts, own.trace.clone()))]), "the same tokens");
    let whole = output(&[request(sent(&prompts, trace.clone()))]);
    assert_ne!(own_output, whole);
    let part = |from: usize, to: usize| trace.iter().map(|row| row[from..to].to_vec()).collect::<Vec<_>>();
    let last = new_tokens - 1;
    let first = || slice(1, sent(&prompts, Vec::new()));
    let sliced = [first(), slice(1, sent(&[], part(0, 1))), slice(9, sent(&[], part(1, last)))];
    assert_eq!(output(&sliced), whole);

    let itself = output(&[first(), slice(9, None)]);
    let chosen: Vec<Vec<u32>> = itself.tokens().to_vec();
    assert_eq!(itself, output(&[request(sent(&prompts, chosen))]), "as if it were fed what it chooses");
    assert_eq!(itself, output(&[request(sent(&prompts, Vec::new()))]));

    for (turns, reason) in [
        (vec![request(sent(&prompts[..0], part(0, 1)))], "a token for each step"),
        (vec![request(sent(&[vec![1]], trace.clone()))], "as long as the case's own"),
        (vec![first(), slice(1, sent(&prompts, part(0, 1)))], "the beginning of a request"),
        (vec![first(), slice(1, sent(&[], part(0, 2)))], "a token for each step"),
        (vec![Turn::Logits { case: 0, tokens: vec![0] }], "no request of it was just computed"),
        (vec![request(None), Turn::Logits { case: 0, tokens: vec![u32::MAX] }], "the vocabulary has"),
    ] {
        let events = ask(&turns);
        assert!(refusal(&events).contains(reason), "{events:?}");
    }
}

#[test]
fn logits_of_the_last_step_are_there_behind_a_slice_and_a_sample() {
    let directory = directory();
    let job = job(directory.path(), Task::Measure(measure()));
    let vocabulary: Vec<u32> = (0..4).collect();
    let logits = || Turn::Logits { case: 0, tokens: vocabulary.clone() };
    let turns = [Turn::slice(0, 1), logits(), Turn::slice(0, 9), logits(), Turn::request(0), logits()];
    let finish = line(&Turn::Finish(Finish::default()));
    let events = serve_lines(&job, &(turns.iter().map(line).collect::<String>() + &finish));
    let of =
        |event: &Event| if let Event::Logits(logits) = event { Some(logits.values.clone()) } else { None };
    let found: Vec<Vec<Vec<f32>>> = events.iter().filter_map(of).collect();
    let Work::Generate(work) = measure().work else { panic!("it continues prompts") };
    assert!(
        found.iter().all(|rows| rows.len() == work.cases[0].prompts.len() && rows[0].len() == 4),
        "{found:?}"
    );
    assert_eq!(found[1], found[2], "behind the last step of the same request");
    assert_ne!(found[0], found[1], "behind the prompt");
}
