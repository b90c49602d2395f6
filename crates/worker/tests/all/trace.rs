//! A run to look at, in memory: a job in, `traced` out.

use protocol::{Case, Decode, Event, GenerateWork, KvCache, Task, Trace, Traced, Work};

use crate::support::fixture::{bundle, job};
use crate::support::{VOCABULARY, first, refusal, serve};

fn trace(prompts: Vec<Vec<u32>>, new_tokens: usize, file: &str) -> Task {
    let cases = vec![Case { prompts, ..Case::default() }];
    let (decode, kv_cache) = (Decode::Greedy, KvCache::On);
    let work = Work::Generate(GenerateWork { cases, new_tokens, decode, kv_cache, prefill_chunk: None });
    Task::Trace(Trace { work, file: file.into() })
}

fn traced(events: &[Event]) -> &Traced {
    first(events, |event| if let Event::Traced(traced) = event { Some(traced) } else { None })
}

#[test]
fn phases_follow_one_another_and_hold_their_requests_and_tokens() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path(), VOCABULARY, 100);
    let file = directory.path().join("profile.json");
    let task = trace(vec![vec![1, 2, 3], vec![4, 5, 6]], 4, file.to_str().unwrap());
    let mut job = job(directory.path(), task);
    job.spawned_at_ns = Some(5);
    let events = serve(&job);
    assert_eq!(events.last(), Some(&Event::Done));
    let traced = traced(&events);
    let names: Vec<_> = traced.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, ["start-up", "load", "cold start", "warm-up", "request"]);
    assert_eq!(traced.phases[0].start_ns, 5, "start-up begins with the process");
    let readings: Vec<u64> = traced.phases.iter().flat_map(|phase| [phase.start_ns, phase.end_ns]).collect();
    assert!(readings.is_sorted(), "{readings:?}");
    for ((request, phase), tokens) in traced.requests.iter().zip(&traced.phases[2..]).zip([1, 4, 4]) {
        assert_eq!((&request.phase, request.start_ns), (&phase.name, phase.start_ns));
        assert_eq!(request.tokens_ns.last(), Some(&phase.end_ns));
        assert_eq!((request.tokens_ns.len(), request.tokens.len()), (tokens, 2));
        assert!(request.tokens.iter().all(|row| row.len() == tokens));
    }
    assert_eq!(traced.requests[1].tokens, traced.requests[2].tokens, "greedy, so alike");
}

#[test]
fn a_framework_without_a_profiler_says_so_and_writes_no_file() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path(), VOCABULARY, 100);
    let file = directory.path().join("profile.json");
    let events = serve(&job(directory.path(), trace(vec![vec![1]], 1, file.to_str().unwrap())));
    let traced = traced(&events);
    assert_eq!(traced.profiler, None);
    assert_eq!(traced.notes, ["Photofinish reads no profiler of counting, so its own events are not here."]);
    assert!(!file.exists());
}

#[test]
fn a_trace_of_nothing_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path(), VOCABULARY, 100);
    for (prompts, new_tokens) in
        [(vec![], 1), (vec![vec![]], 1), (vec![vec![1]], 0), (vec![vec![1], vec![]], 1)]
    {
        refusal(&serve(&job(directory.path(), trace(prompts, new_tokens, "nowhere.json"))));
    }
}
