//! Records for the tests.

use std::path::Path;

use comparison::history;
use driver::history_file;
use serde_json::{Value, json};

/// In the driver's form, with each optional part.
pub(crate) fn value(run: &str) -> Value {
    let figure = json!({
        "unit": "tok/s", "higher_is_better": true, "typical": 131.25, "interval": [129.5, 133.1],
        "values": [131.25, null, 129.5, 133.1]
    });
    json!({
        "schema": 1, "run": run, "results": format!("results/{run}"), "study": "sweep forward",
        "time": "2026-11-21T15:14:00Z", "git_commit": "605f0afec08b03f2280a0a582af81f5b9b864bda", "git_modified": false,
        "driver_version": "0.1.0", "command": ["driver", "sweep", "forward"],
        "request": {"frameworks": ["candle", "tch"], "margin": 0.02},
        "machine": {
            "fingerprint": "0123456789abcdef", "host": "host", "os": "Linux", "kernel": null, "cpu": "a CPU",
            "physical_cores": 2, "available_cores": 2, "memory_bytes": 16_000_000_000_u64, "gpus": [],
            "read_bandwidth": 3.6e10, "arithmetic": 1.2e11
        },
        "case": {
            "model": "smollm2-135m", "weights_sha256": "00ff", "precision": "f32", "device": "cpu", "threads": 2,
            "batch": 1, "context": 0, "prompt_tokens": [12, 34], "new_tokens": 32, "decode": "forced",
            "kv_cache": "on", "jit": true
        },
        "settings": {
            "suite": "default", "fair_comparison": true, "iterations": 2, "margin": 0.02, "seed": u64::MAX,
            "accept_noise": false
        },
        "framework": "candle", "library": "candle 0.11.1", "binding": "candle-core 0.11.1", "optimised": true,
        "state": "measured", "reasons": [], "rounds": 6, "interrupted": false, "noise": null,
        "parity": {"agrees": true, "text": "ok, Δ ≤ 1e-5", "reference": "candle", "max_abs": 1.1e-5, "top1": 1.0},
        "metrics": {"throughput": figure},
        "memory": {"parameters": 538_000_000.0, "peak": 600_000_000.0},
        "verdicts": [{
            "metric": "throughput", "against": "tch", "verdict": "faster", "advantage": 1.2, "interval": [1.1, 1.3],
            "sentence": "candle is 1.2x faster"
        }]
    })
}

pub(crate) fn record(run: &str) -> history::Record {
    serde_json::from_value(value(run)).unwrap()
}

pub(crate) fn append(history: &Path, run: &str) {
    history_file::append(history, &[record(run)]).unwrap();
}
