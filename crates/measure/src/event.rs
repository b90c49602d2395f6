//! A worker's event in the form that is stored: without fields that only the driver may set, with readings
//! that the driver adds.

use protocol::{Event, GpuMemory, Sample};

/// The event in the form that is stored. `held`: the memory that its process holds on its GPUs.
pub(crate) fn taken(event: Event, held: impl FnOnce() -> Option<u64>) -> Event {
    with_gpu_memory(without_notes(event), held)
}

/// The event without fields that only the driver may set: which steps came just after a pause. Vectors and
/// tensors of warm-up are dropped too, because nothing reads them.
fn without_notes(mut event: Event) -> Event {
    if let Event::Warmup(warmup) = &mut event {
        for sample in warmup.iterations.iter_mut().flat_map(|each| &mut each.cases) {
            sample.output.clear_numbers();
        }
    }
    let samples: Vec<&mut Sample> = match &mut event {
        Event::Sample(sample) => std::slice::from_mut(sample).iter_mut().collect(),
        Event::Warmup(warmup) => warmup.iterations.iter_mut().flat_map(|each| &mut each.cases).collect(),
        _ => Vec::new(),
    };
    samples.into_iter().for_each(|sample| sample.lead_in.clear());
    event
}

/// The event with the memory that its process holds on the GPUs now, if the worker has not read that itself:
/// references leave it to the driver.
fn with_gpu_memory(mut event: Event, held: impl FnOnce() -> Option<u64>) -> Event {
    if let Some(memory) = event.memory_mut().filter(|memory| memory.gpu.is_none()) {
        memory.gpu = held()
            .map(|bytes| GpuMemory { bytes, method: "NVML, compute processes, read by the driver".into() });
    }
    event
}

#[cfg(test)]
mod tests {
    use protocol::Memory;

    use super::*;

    fn held(event: Event, bytes: u64) -> Option<u64> {
        let mut event = with_gpu_memory(event, || Some(bytes));
        Some(event.memory_mut()?.gpu.as_ref()?.bytes)
    }

    #[test]
    fn which_steps_came_after_a_pause_is_not_for_a_worker_to_say() {
        let sample = Sample { lead_in: vec![0], ..Sample::default() };
        let Event::Sample(noted) = without_notes(Event::Sample(sample)) else { panic!("another event") };
        assert!(noted.lead_in.is_empty());
    }

    #[test]
    fn memory_of_a_gpu_that_the_worker_did_not_read_is_read_for_it() {
        let started = |gpu| {
            let memory = Memory { gpu, ..Memory::default() };
            Event::Started(protocol::Started { startup_ns: None, runtime_ns: 0, memory })
        };
        let told = GpuMemory { bytes: 5, method: "NVML, compute processes".into() };
        assert_eq!((held(started(None), 7), held(started(Some(told)), 7)), (Some(7), Some(5)));
        assert_eq!(held(Event::Done, 7), None);
    }
}
