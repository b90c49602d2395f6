//! Readings of a GPU, over all processes of a contender.

use std::collections::BTreeSet;

use protocol::GpuWork;
use statistics::median;

use facts::run::Run;

/// Over all processes of a contender; `None` if none of them has readings.
pub(crate) fn work(complete: &[&Run]) -> Option<GpuWork> {
    let all: Vec<&GpuWork> = complete.iter().filter_map(|run| run.usage()?.gpu.as_ref()).collect();
    let least = |of: fn(&GpuWork) -> Option<u64>| all.iter().filter_map(|work| of(work)).min();
    let most = |of: fn(&GpuWork) -> Option<u64>| all.iter().filter_map(|work| of(work)).max();
    let said = |of: fn(&GpuWork) -> &untrusted::Foreigns| {
        let texts: BTreeSet<&str> = all.iter().flat_map(|work| of(work)).map(|text| text.as_str()).collect();
        texts.into_iter().collect()
    };
    let means: Vec<f64> = all.iter().filter_map(|work| Some(work.held_mean_bytes? as f64)).collect();
    (!all.is_empty()).then(|| GpuWork {
        slowest_mhz: least(|work| work.slowest_mhz),
        fastest_mhz: most(|work| work.fastest_mhz),
        most_mhz: most(|work| work.most_mhz),
        celsius: most(|work| work.celsius),
        held_mean_bytes: median(&means).map(|mean| mean as u64),
        held_most_bytes: most(|work| work.held_most_bytes),
        held_back: said(|work| &work.held_back),
        remarks: said(|work| &work.remarks),
    })
}
