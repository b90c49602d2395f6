//! A profiler's events on the worker's clock: the mock's are of the time since 1970.

use protocol::{Case, Decode, Event, GenerateWork, KvCache, ProfileEvent, Task, Trace, Traced, Work};

use crate::{bundle, events_of, first, job, settings};

fn traced(directory: &std::path::Path, options: &[(&str, &str)]) -> Traced {
    let bundle = bundle(2);
    let file = directory.join("profile.json").display().to_string();
    let cases = vec![Case { prompts: vec![vec![1, 2, 3]], ..Case::default() }];
    let (decode, kv_cache) = (Decode::Greedy, KvCache::On);
    let work = Work::Generate(GenerateWork { cases, new_tokens: 3, decode, kv_cache, prefill_chunk: None });
    let task = Task::Trace(Trace { work, file });
    let events = events_of(&job(bundle.path(), settings(options), task), "");
    first(&events, |event| if let Event::Traced(traced) = event { Some(traced.clone()) } else { None })
}

#[test]
fn a_profiler_s_events_lie_in_the_steps_that_they_belong_to() {
    let directory = tempfile::tempdir().unwrap();
    let traced = traced(directory.path(), &[("profiler", "true")]);
    let profiler = traced.profiler.unwrap();
    assert_eq!(profiler.alignment.clock, "CLOCK_REALTIME");
    let error_ns = profiler.alignment.error_ns.unwrap();
    let events: Vec<ProfileEvent> =
        serde_json::from_str(&std::fs::read_to_string(profiler.file.as_str()).unwrap()).unwrap();
    assert_eq!(events.len(), profiler.events);
    let appends: Vec<_> = events.iter().filter(|event| event.name == "append").collect();
    let mut steps = Vec::new();
    for request in &traced.requests {
        let starts = std::iter::once(request.start_ns).chain(request.tokens_ns.clone());
        steps.extend(starts.zip(request.tokens_ns.clone()));
    }
    assert_eq!(appends.len(), steps.len(), "one call a step");
    for (event, (start, end)) in appends.iter().zip(steps) {
        let inside =
            start <= event.start_ns + error_ns && event.start_ns + event.duration_ns <= end + error_ns;
        assert!(inside, "{event:?} is not in {start}..{end}, with an error of {error_ns}");
    }
    let parts: Vec<_> = events[1..7].iter().filter_map(|event| event.part.as_deref()).collect();
    let layers = ["layer 0 attention", "layer 0 mlp", "layer 1 attention", "layer 1 mlp"];
    assert_eq!(parts, [&["embedding"], &layers[..], &["head"]].concat());
}
