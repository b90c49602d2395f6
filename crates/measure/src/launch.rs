//! Prepares the start of a contender's worker: its request, its environment and its CPUs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::native;
use crate::places::Places;
use crate::worker::Worker;
use plan::{Contender, HugePages, KernelCache};
use setup::Target;

pub fn settings(contender: &Contender, device: &str, hidden_states: bool) -> protocol::Settings {
    protocol::Settings {
        precision: contender.precision.name().into(),
        decoder: contender.cache.settings(contender.precision),
        device: device.into(),
        threads: contender.threads,
        shards: contender.shards,
        jit: contender.jit,
        hidden_states,
        dequantised: false,
        options: contender.engine.options.clone(),
        serve: contender.serve,
        slowdown: contender.engine.settings.slowdown,
        anew: contender.anew,
    }
}

/// Variables that set a number of threads, one for each runtime that reads one.
const THREAD_VARIABLES: [&str; 5] =
    ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];

/// The environment of every worker: the variables that the system needs, the thread budget and the memory
/// policy.
pub fn environment(threads: usize, huge_pages: HugePages) -> BTreeMap<String, String> {
    let mut environment = BTreeMap::new();
    for name in ["PATH", "TMPDIR", "SYSTEMROOT", gpu::VISIBLE, gpu::LIBRARY_VARIABLE] {
        if let Ok(value) = std::env::var(name) {
            environment.insert(name.to_owned(), value);
        }
    }
    // The driver and the workers number GPUs alike.
    environment.insert(gpu::ORDER.0.to_owned(), gpu::ORDER.1.to_owned());
    // 0 leaves the number to the framework.
    for name in THREAD_VARIABLES.into_iter().filter(|_| threads > 0) {
        environment.insert(name.to_owned(), threads.to_string());
    }
    environment.insert(configs::TUNABLES.to_owned(), huge_pages.tunables().to_owned());
    environment
}

/// The worker of an engine with its CPUs and its whole environment: that of every worker, and the variables
/// of the engine's configuration.
pub fn worker(
    contender: &Contender,
    cpus: Option<&[usize]>,
    places: &Places,
    (timeout_s, huge_pages): (u64, HugePages),
) -> Worker {
    let engine = &contender.engine;
    let mut environment = environment(contender.threads, huge_pages);
    for (name, value) in &engine.env {
        let value = std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .unwrap_or_else(|| value.replace("{cache}", &places.cache.display().to_string()));
        environment.insert(name.clone(), value);
    }
    environment.extend(native::variables(places, engine));
    Worker {
        absent: native::absent(engine),
        cpus: cpus.filter(|_| contender.threads > 0).map(<[usize]>::to_vec),
        ..Worker::new(native::binary(places, engine), environment, Duration::from_secs(timeout_s))
    }
}

/// The variables that name a process's own cache of compiled kernels; `asked` is the run's setting.
pub fn own_caches(contender: &Contender, asked: KernelCache, target: Target) -> Vec<String> {
    let own = contender.engine.kernel_cache.iter().cloned();
    match (contender.engine.settings.kernel_cache.unwrap_or(asked), target) {
        (KernelCache::Keep, _) => Vec::new(),
        (KernelCache::Fresh, Target::Cpu) => own.collect(),
        (KernelCache::Fresh, Target::Cuda) => own.chain([native::CUDA_KERNELS.to_owned()]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use configs::{Engine, EngineSettings};
    use plan::Request;

    use super::*;

    #[test]
    fn a_column_s_own_setting_of_its_kernel_cache_comes_first() {
        let contender = |kernel_cache| {
            let settings = EngineSettings { kernel_cache, ..EngineSettings::default() };
            let engine = Engine { settings, kernel_cache: vec!["CACHE".into()], ..Engine::default() };
            Contender::new("a".into(), engine, &Request::default(), 1)
        };
        let own = |setting, asked| own_caches(&contender(setting), asked, Target::Cpu).len();
        assert_eq!((own(None, KernelCache::Keep), own(None, KernelCache::Fresh)), (0, 1));
        assert_eq!(own(Some(KernelCache::Fresh), KernelCache::Keep), 1);
        assert_eq!(own(Some(KernelCache::Keep), KernelCache::Fresh), 0);
        let on_a_gpu = own_caches(&contender(None), KernelCache::Fresh, Target::Cuda);
        assert_eq!(on_a_gpu, ["CACHE", native::CUDA_KERNELS]);
    }
}
