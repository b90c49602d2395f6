//! The machine's limit: the least time for the work at the speeds that the probe measured at each process,
//! and the share of the limit that an engine reaches. `docs/reference/measures.md` has the formulas.

use std::collections::BTreeMap;

use bundle::{BundleError, ModelConfig, Precision, StoredTensor, TensorSpec};
use protocol::Unit;
use serde::{Deserialize, Serialize};
use statistics::median;

use crate::facts::arithmetic::Multiplied;
use crate::facts::evidence::{Evidence, Probe, Process};
use crate::facts::run::Run;
use crate::judge::metrics::{Metric, by_round, by_round_of};
use crate::judge::report::memory::{kv_cache_bytes, kv_cache_element};
use crate::judge::work::encode;
use crate::plan::work::Generate;
use crate::plan::{self, Contender, Plan, Prompted};

/// The least work of a model's computation, from its shapes and its stored weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Bytes of weights that a step reads, as stored: all linear layers, the output head, norms and biases. A
    /// table used only for lookup does not count.
    pub weights: f64,
    /// Bytes of the KV cache that an average decode step of the plan reads, for all sequences of the batch.
    pub kv_cache: f64,
    /// Floating-point operations of the prefill of all cases of one iteration.
    pub prefill: f64,
}

impl Work {
    /// Computes the work of requests; `element` is the bytes of one element of the KV cache.
    pub fn new(
        config: &ModelConfig,
        work: &Generate,
        precision: Precision,
        element: usize,
    ) -> Result<Work, BundleError> {
        // On average, half of the new tokens are in the cache, in addition to the prompt.
        let Prompted { new_tokens, batch, .. } = &work.prompted;
        // Every sequence of every case, without padding.
        let rows = work.prompted.case_prompts().concat();
        let contexts = rows.iter().map(|row| work.context + row.len() + new_tokens / 2);
        let context = contexts.sum::<usize>() / rows.len().max(1);
        let prefill = rows.iter().map(|row| prefill_operations(config, work.context, row.len()));
        let heard = config.audio.map_or(0, |audio| kv_cache_bytes(config, 1, audio.positions(), element));
        Ok(Work {
            weights: weights_read(config, precision)? as f64,
            kv_cache: (kv_cache_bytes(config, *batch, context, element) + heard) as f64,
            // Of a model that hears it would be the encoder's, too, which has a metric of its own.
            prefill: if config.audio.is_some() { 0.0 } else { prefill.sum() },
        })
    }

    /// Bytes that one decode step reads, for all sequences of the batch together.
    pub fn step_bytes(self) -> f64 {
        self.weights + self.kv_cache
    }
}

/// Stored bytes of every tensor that a step reads completely; codes with their scales. Of experts, those of one token:
/// a batch may read more, and no fewer.
pub fn weights_read(config: &ModelConfig, precision: Precision) -> Result<u64, BundleError> {
    let mut looked_up: Vec<String> = config.position_embedding().into_iter().collect();
    if !config.tied_embeddings {
        looked_up.push(config.embedding());
    }
    let stored = config.stored(precision)?;
    let heard = config.read_once();
    let read =
        stored.iter().filter(|tensor| !looked_up.contains(&tensor.name) && !heard.contains(&tensor.name));
    let shares = config.expert_shares();
    let of_experts = |tensor: &StoredTensor| {
        shares.get(&tensor.name).map_or(tensor.bytes() as f64, |share| share * tensor.bytes() as f64)
    };
    Ok(read.map(of_experts).sum::<f64>().round() as u64)
}

/// Least operations for a prompt of `tokens`: two for each parameter of the layers' products and each token, and the
/// output head for the last token only. Attention adds, for each head and each pair of a token with itself or an
/// earlier one, `q · k` and the weighted sum of `v`. Norms, activations and softmax are left out; in common models they
/// are one hundredth of the total.
fn prefill_operations(config: &ModelConfig, context: usize, tokens: usize) -> f64 {
    let head = config.lm_head();
    let tables = [config.embedding(), head.clone(), config.position_embedding().unwrap_or_default()];
    let tensors = config.tensors();
    let matrices = tensors.iter().filter(|tensor| tensor.shape.len() == 2 && !tables.contains(&tensor.name));
    let shares = config.expert_shares();
    let of_token = |tensor: &TensorSpec| {
        let numbers = tensor.shape.iter().product::<usize>() as f64;
        shares.get(&tensor.name).map_or(numbers, |share| share * numbers)
    };
    let layers: f64 = matrices.map(of_token).sum();
    let head = config.vocab_size * config.hidden_size;
    let pairs = context * tokens + tokens * (tokens + 1) / 2;
    let attention = 4 * config.layers.len() * config.heads * config.head_dim * pairs;
    2.0 * layers * tokens as f64 + (2 * head + attention) as f64
}

/// Closeness of one contender to the machine's limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Bytes of weights and of KV cache that a decode step reads.
    pub weights: f64,
    pub kv_cache: f64,
    /// Operations of the prefill of one iteration, or of the batch of texts with the most tokens, without
    /// padding.
    pub operations: f64,
    pub decode: Option<Share>,
    /// Share of the limit of arithmetic, on the unit that multiplies the numbers that were observed; where nothing was
    /// observed, in the precision that the probe computed in.
    pub prefill: Option<Share>,
    /// The same for that batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Share>,
}

/// Share of the limit: the least time ÷ the time taken; 1 is the limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Median over rounds, each compared with the probes at its process.
    pub median: f64,
    /// The share in each round.
    pub values: Vec<Option<f64>>,
    /// Median of the machine's speed: bytes per second, or operations per second.
    pub limit: f64,
    pub bound: Bound,
    /// The unit of the CPU whose speed it is; none for f32 and for memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
}

/// The resource that sets a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Memory,
    Compute,
}

/// The limits of every measured contender, by label.
pub fn limits(plan: &Plan, config: &ModelConfig, evidence: &Evidence) -> BTreeMap<String, Limit> {
    let of_contender = |contender: &Contender| {
        let (label, precision) = (contender.label.as_str(), contender.precision);
        if let Some(work) = plan.work.encode() {
            return Some((label.to_owned(), encode::limit((plan, work), config, evidence, contender)?));
        }
        // Without a cache, or with all positions computed in every step, the bytes of a step are not the
        // limit.
        let asked = plan.work.generate().filter(|_| contender.cache.is_on())?;
        let mut runs = evidence.complete(label);
        let element = runs.find_map(kv_cache_element)?;
        let work = Work::new(config, asked, precision, element).ok()?;
        Some((label.to_owned(), limit(plan, evidence, label, precision, work)))
    };
    plan.contenders.iter().filter_map(of_contender).collect()
}

/// The speed that products of so many rows can reach in each round, by the numbers that the contender was seen to
/// multiply; where nothing was seen, by its precision. Nothing if that speed was not measured.
pub(crate) fn arithmetic(
    plan: &Plan,
    evidence: &Evidence,
    contender: (&str, Precision),
    rows: usize,
) -> Option<(Option<Unit>, Vec<Option<f64>>)> {
    let (label, precision) = contender;
    let observed = match evidence.arithmetic.get(label) {
        Some(Ok(observed)) if !plan.is_on_gpu() => {
            observed.iter().rev().find(|it| it.rows <= rows).or(observed.first()).map(|it| it.multiplied)
        }
        _ => None,
    };
    let units = match observed {
        None if !probes(plan, evidence).all(|probe| probe.precision == precision.name()) => return None,
        None | Some(Multiplied::F32 | Multiplied::Bits11) => [].as_slice(),
        Some(Multiplied::Bf16) => &[Unit::AmxBf16, Unit::Avx512Bf16],
        Some(Multiplied::Int8(_) | Multiplied::Int8Shared) => &[Unit::AmxInt8, Unit::Avx512Vnni],
    };
    let is_there = |unit: &&Unit| probes(plan, evidence).all(|probe| probe.units.contains_key(unit));
    let unit = units.iter().find(is_there).copied();
    // Without a unit of their own, numbers in bf16 are multiplied in f32; integers in ways that are not measured.
    if unit.is_none() && units.contains(&Unit::AmxInt8) {
        return None;
    }
    let speed = |probe: &Probe| unit.map_or(probe.arithmetic, |unit| probe.units[&unit]);
    Some((unit, beside(plan, evidence, label, speed)))
}

fn limit(plan: &Plan, evidence: &Evidence, label: &str, precision: Precision, work: Work) -> Limit {
    let bandwidth = beside(plan, evidence, label, |probe| probe.read_bandwidth);
    let rates = by_round(Metric::Throughput, plan, evidence, label);
    let steps = rates.into_iter().map(|rate| Some(rate? / plan.work.batch() as f64));
    let decode = share(steps, &bandwidth, work.step_bytes(), Bound::Memory);

    // Prefills of all cases, one after the other, per second.
    let cases: Vec<Vec<Option<f64>>> = (0..plan.work.cases())
        .map(|case| by_round_of(Metric::FirstToken, case..case + 1, plan, evidence, label))
        .collect();
    let rounds = cases.first().map_or(0, Vec::len);
    let prefills = (0..rounds).map(|round| {
        let ms: f64 = cases.iter().map(|of_case| of_case[round]).sum::<Option<f64>>()?;
        Some(1e3 / ms)
    });
    let rows = (0..plan.work.cases()).map(|case| plan.work.case_tokens(case)).min().unwrap_or(0);
    let arithmetic = arithmetic(plan, evidence, (label, precision), rows);
    let by_compute = arithmetic.as_ref().and_then(|(unit, speeds)| {
        let share = share(prefills.clone(), speeds, work.prefill, Bound::Compute)?;
        Some(Share { unit: *unit, ..share })
    });
    // Each case reads the weights once.
    let bytes = work.weights * plan.work.cases() as f64;
    let by_memory = share(prefills, &bandwidth, bytes, Bound::Memory);
    let prefill = match (by_compute, by_memory) {
        (Some(compute), Some(memory)) if memory.median > compute.median => Some(memory),
        (compute, _) => compute,
    };
    Limit {
        weights: work.weights,
        kv_cache: work.kv_cache,
        operations: work.prefill,
        decode,
        prefill: prefill.filter(|_| arithmetic.is_some() && work.prefill > 0.0),
        encoding: None,
    }
}

/// The probes of the device that the plan computes on. Another device's speed is no limit: a GPU's memory is
/// not the host's.
pub(crate) fn probes<'a>(plan: &'a Plan, evidence: &'a Evidence) -> impl Iterator<Item = &'a Probe> + Clone {
    evidence.probes.iter().filter(|probe| probe.device == plan.device.as_str())
}

/// A speed at each round's process: the mean of the probes before and after it.
pub(crate) fn beside(
    plan: &Plan,
    evidence: &Evidence,
    label: &str,
    speed: impl Fn(&Probe) -> f64,
) -> Vec<Option<f64>> {
    let rounds = evidence.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    let at = |round: usize| {
        let run = evidence.runs.iter().find(|run| run.framework == label && run.round == round)?;
        let is_it = |process: &Process| process.is(run);
        let is_beside = |probe: &&Probe| probe.before.iter().chain(&probe.after).any(is_it);
        let speeds: Vec<f64> = probes(plan, evidence).filter(is_beside).map(&speed).collect();
        (!speeds.is_empty()).then(|| speeds.iter().sum::<f64>() / speeds.len() as f64)
    };
    (0..rounds).map(at).collect()
}

pub(crate) fn share(
    times_a_second: impl Iterator<Item = Option<f64>>,
    limits: &[Option<f64>],
    work: f64,
    bound: Bound,
) -> Option<Share> {
    let values: Vec<Option<f64>> =
        times_a_second.zip(limits).map(|(rate, limit)| Some(work * rate? / (*limit)?)).collect();
    let known = |values: &[Option<f64>]| median(&values.iter().copied().flatten().collect::<Vec<_>>());
    Some(Share { median: known(&values)?, limit: known(limits)?, values, bound, unit: None })
}

// Impossible results: each is flagged in the report, whatever the rules decide. Either the measurement or
// our understanding of it is wrong.

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flag {
    pub framework: String,
    pub kind: Kind,
    pub finding: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Weights were read faster than the machine can read.
    AboveBandwidth,
    /// More bytes in less time.
    WiderIsFaster,
    /// Samples that do not add up to the time they took.
    SamplesDisagree,
    /// Less memory than the weights need.
    BelowWeights,
}

impl Flag {
    /// Whether figures of this metric cannot be believed either. A format of half the bytes may have slower
    /// kernels.
    pub fn spoils(&self, metric: Metric) -> bool {
        match self.kind {
            Kind::AboveBandwidth => metric.depends_on_speed(),
            Kind::SamplesDisagree => metric.is_of_requests(),
            Kind::BelowWeights => metric == Metric::PeakMemory,
            Kind::WiderIsFaster => false,
        }
    }
}

/// Two sweeps of the same buffer differ by a few percent, and by more if huge pages are only sometimes
/// available; an impossible rate must exceed that.
const BANDWIDTH_SLACK: f64 = 1.25;

/// A whole iteration is its samples, a few microseconds for each case, and a moment off the CPU now and then.
const SAMPLE_SLACK: f64 = 0.05;

pub fn flags(plan: &Plan, evidence: &Evidence, limits: &BTreeMap<String, Limit>) -> Vec<Flag> {
    let mut flags = Vec::new();
    for contender in &plan.contenders {
        let label = contender.label.as_str();
        let runs: Vec<&Run> = evidence.complete(label).collect();
        let mut flag = |kind: Kind, finding: Option<String>| {
            flags.extend(finding.map(|finding| Flag { framework: label.to_owned(), kind, finding }));
        };
        let limit = limits.get(label);
        flag(Kind::AboveBandwidth, limit.and_then(|limit| above_bandwidth(plan, evidence, label, limit)));
        flag(Kind::SamplesDisagree, runs.iter().find_map(|run| samples_disagree(plan, run)));
        flag(Kind::BelowWeights, runs.iter().find_map(|run| below_weights(run, limit?.weights)));
    }
    flags.extend(wider_is_faster(plan, evidence));
    flags
}

/// A decode step of a dense model reads every weight once, for all sequences of the batch.
fn above_bandwidth(plan: &Plan, evidence: &Evidence, label: &str, limit: &Limit) -> Option<String> {
    let best = probes(plan, evidence).map(|probe| probe.best_read_bandwidth).reduce(f64::max)?;
    let bytes = limit.weights;
    let rates = by_round(Metric::Throughput, plan, evidence, label).into_iter().flatten();
    let steps = rates.reduce(f64::max)? / plan.work.batch() as f64;
    let needed = steps * bytes;
    (needed > BANDWIDTH_SLACK * best).then(|| {
        format!(
            "{steps:.1} steps a second over {:.0} MB of weights are {:.1} GB/s, but {} was measured to read {:.1} GB/s",
            bytes / 1e6,
            needed / 1e9,
            if plan.device == "cpu" { "the machine" } else { plan.device.as_str() },
            best / 1e9
        )
    })
}

/// The gaps give one throughput; the time of whole iterations, less the first tokens, another. Gaps that are longer
/// than the whole are a slow moment that it missed, if the driver's clock saw as much time.
fn samples_disagree(plan: &Plan, run: &Run) -> Option<String> {
    // Between sequences of runs, a worker reads files of inputs and draws others.
    if matches!(plan.work, plan::Work::Graph(_)) {
        return None;
    }
    let wall = run.usage()?.wall_ns as f64;
    // All requests, including those of repeated blocks: the wall time includes them.
    let cases = run.all_requests();
    let first: u64 = cases.iter().map(|case| case.marks_ns.first()).sum();
    let gaps: Vec<u64> = cases.iter().flat_map(|case| case.marks_ns.gaps()).collect();
    let mean_gap = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
    let by_wall = (wall - first as f64) / gaps.len() as f64;
    let (by_gaps, by_wall) =
        (plan.work.batch() as f64 * 1e9 / mean_gap, plan.work.batch() as f64 * 1e9 / by_wall);
    let claimed: u64 = cases.iter().map(|case| case.marks_ns.end()).sum();
    let seen: u64 = run.turns.iter().flat_map(|turn| &turn.seen_ns).sum();
    let agrees = (by_gaps / by_wall - 1.0).abs() <= SAMPLE_SLACK || by_gaps < by_wall && seen >= claimed;
    (!gaps.is_empty() && !agrees).then(|| {
        format!(
            "a mean gap of {:.3} ms means {by_gaps:.1} tok/s, but whole iterations took as long as {by_wall:.1} tok/s",
            mean_gap / 1e6
        )
    })
}

/// `weights`: bytes of those that every step reads. For a mapped table used for lookup, few pages need be
/// resident.
fn below_weights(run: &Run, weights: f64) -> Option<String> {
    let peak = run.peak_bytes()? as f64;
    (peak < weights).then(|| {
        format!(
            "its peak memory of {:.1} MB is below the {:.1} MB of weights that every step reads",
            peak / 1e6,
            weights / 1e6
        )
    })
}

/// The same framework in f32 and in half the bytes, where decoding is bound by reading them.
fn wider_is_faster(plan: &Plan, evidence: &Evidence) -> Vec<Flag> {
    let rate = |label: &str| {
        median(&by_round(Metric::Throughput, plan, evidence, label).into_iter().flatten().collect::<Vec<_>>())
    };
    let mut flags = Vec::new();
    for wide in plan.contenders.iter().filter(|c| c.precision == bundle::Precision::F32) {
        let narrow = plan.contenders.iter().filter(|c| {
            c.precision != bundle::Precision::F32
                && c.engine.framework == wide.engine.framework
                && c.engine.options == wide.engine.options
        });
        for narrow in narrow {
            if let (Some(of_wide), Some(of_narrow)) = (rate(&wide.label), rate(&narrow.label))
                && of_wide > of_narrow
            {
                flags.push(Flag {
                    framework: narrow.label.clone(),
                    kind: Kind::WiderIsFaster,
                    finding: format!(
                        "{of_narrow:.1} tok/s in {}, but {of_wide:.1} in f32, which reads more bytes",
                        narrow.precision.name()
                    ),
                });
            }
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use crate::facts::arithmetic::Arithmetic;
    use crate::facts::testing::{self, config};
    use protocol::{Marks, Sample};

    use super::*;

    #[test]
    fn prefill_counts_products_attention_and_the_head_once() {
        // A layer: q and o of 8 × 8, k and v of 4 × 8, gate, up and down of 16 × 8.
        let layer = 2 * 64 + 2 * 32 + 3 * 128;
        let attention = 4 * 2 * 2 * 4 * (1 + 2 + 3);
        assert_eq!(prefill_operations(&config(), 0, 3), f64::from(2 * (2 * layer * 3 + 32 * 8) + attention));
    }

    fn process(round: usize) -> Vec<Process> {
        vec![Process { round, attempt: 0, framework: "a".into() }]
    }

    #[test]
    fn a_step_reads_what_is_stored_but_not_a_table_that_rows_are_looked_up_in() {
        let mut config = config();
        let read = |config: &ModelConfig, precision| weights_read(config, precision).unwrap();
        // Two norms of each layer have 8 elements; one more follows the layers.
        let (matrices, norms) = (2 * (2 * 64 + 2 * 32 + 3 * 128), 2 * 2 * 8 + 8);
        assert_eq!(read(&config, Precision::F32), 4 * (matrices + norms + 32 * 8));
        assert_eq!(read(&config, Precision::F16), 2 * (matrices + norms + 32 * 8));
        config.tied_embeddings = false;
        assert_eq!(
            read(&config, Precision::F32),
            4 * (matrices + norms + 32 * 8),
            "the head, not the embedding"
        );
    }

    #[test]
    fn of_experts_a_step_reads_those_of_a_token() {
        let mixtral = |experts: usize, chosen: usize| {
            let json = serde_json::json!({
                "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 64,
                "num_local_experts": experts, "num_experts_per_tok": chosen
            });
            ModelConfig::from_json(&json).unwrap()
        };
        let router = |experts: usize| 2 * experts * 64;
        for precision in [Precision::F32, Precision::Int8] {
            let read = |experts, chosen| weights_read(&mixtral(experts, chosen), precision).unwrap();
            assert_eq!(read(8, 2) - 4 * router(8) as u64, read(2, 2) - 4 * router(2) as u64, "{precision}");
        }
        let operations = |experts, chosen| prefill_operations(&mixtral(experts, chosen), 0, 5);
        assert_eq!(operations(8, 2) - operations(2, 2), (2 * 5 * (router(8) - router(2))) as f64);
    }

    #[test]
    fn codes_count_with_their_scales() {
        let mut config = config();
        (config.hidden_size, config.head_dim) = (64, 32);
        let mlp = bundle::Feed::Mlp(bundle::Mlp { width: 64, ..config.mlp(0) });
        config.layers.iter_mut().for_each(|layer| layer.feed = mlp.clone());
        let matrices = 2 * (7 * 64 * 64 - 2 * 32 * 64) + 32 * 64;
        let rows = 2 * (7 * 64 - 2 * 32) + 32;
        let read = weights_read(&config, Precision::Int8).unwrap();
        assert_eq!(read, matrices + 4 * rows + 4 * (2 * 2 * 64 + 64));
    }

    /// One process a round: two gaps of 10 ms after a first token of 20 ms.
    fn evidence(bandwidths: &[f64]) -> Evidence {
        let case = Sample { marks_ns: Marks::new(20_000_000, [10_000_000; 2]), ..Sample::default() };
        let mut evidence = Evidence::default();
        for (round, &bandwidth) in bandwidths.iter().enumerate() {
            evidence.runs.push(testing::measured("a", round, Vec::new(), vec![vec![case.clone()]]));
            evidence.probes.push(Probe { after: process(round), ..testing::probe(bandwidth, 1e9) });
        }
        evidence
    }

    const WORK: Work = Work { weights: 3e6, kv_cache: 1e6, prefill: 10e6 };

    #[test]
    fn decode_is_held_against_the_bandwidth_beside_each_process() {
        let plan = testing::plan(&["a"]);
        // A hundred steps a second over 4 MB.
        let limit = limit(&plan, &evidence(&[400e6, 800e6, 800e6]), "a", Precision::F32, WORK);
        let decode = limit.decode.unwrap();
        let rounded = |share: f64| (1e9 * share).round() / 1e9;
        let values: Vec<f64> = decode.values.iter().flatten().map(|&share| rounded(share)).collect();
        assert_eq!(values, [1.0, 0.5, 0.5]);
        assert_eq!((rounded(decode.median), decode.limit, decode.bound), (0.5, 800e6, Bound::Memory));
    }

    #[test]
    fn the_probes_before_and_after_count_alike_and_those_of_others_not_at_all() {
        let mut evidence = evidence(&[500e6]);
        let before = Probe { before: process(0), ..testing::probe(300e6, 1e9) };
        let of_another_round = Probe { after: process(1), ..testing::probe(1.0, 1.0) };
        evidence.probes.extend([before, testing::probe(1.0, 1.0), of_another_round]);
        let limit = limit(&testing::plan(&["a"]), &evidence, "a", Precision::F32, WORK);
        assert_eq!(limit.decode.unwrap().limit, 400e6);
    }

    #[test]
    fn prefill_is_bound_by_whichever_takes_longer() {
        let plan = testing::plan(&["a"]);
        let prefill = |bandwidth, precision| {
            limit(&plan, &evidence(&[bandwidth]), "a", precision, WORK)
                .prefill
                .map(|s| ((1e9 * s.median).round() / 1e9, s.bound))
        };
        // 10 MFLOP take 10 ms of the 20; 3 MB take 3 or 15.
        assert_eq!(prefill(1e9, Precision::F32), Some((0.5, Bound::Compute)));
        assert_eq!(prefill(2e8, Precision::F32), Some((0.75, Bound::Memory)));
        assert_eq!(prefill(1e9, Precision::F16), None);
    }

    #[test]
    fn prefill_is_compared_with_the_unit_for_what_is_multiplied() {
        let seen = |multiplied, units: &[(Unit, f64)]| {
            let mut evidence = evidence(&[2e9]);
            evidence.probes[0].units = units.iter().copied().collect();
            let observed = Arithmetic { rows: 1, multiplied, adds_in_f32: true };
            evidence.arithmetic.insert("a".into(), Ok(vec![observed]));
            let limit = limit(&testing::plan(&["a"]), &evidence, "a", Precision::Bf16, WORK);
            limit.prefill.map(|share| (share.limit, share.unit))
        };
        let units = [(Unit::Avx512Bf16, 2e9), (Unit::AmxBf16, 3e9), (Unit::AmxInt8, 4e9)];
        assert_eq!(seen(Multiplied::F32, &units), Some((1e9, None)));
        assert_eq!(seen(Multiplied::Bf16, &units), Some((3e9, Some(Unit::AmxBf16))));
        assert_eq!(seen(Multiplied::Bf16, &units[..1]), Some((2e9, Some(Unit::Avx512Bf16))));
        assert_eq!(seen(Multiplied::Bf16, &[]), Some((1e9, None)), "multiplied in f32");
        assert_eq!(seen(Multiplied::Int8(32), &units), Some((4e9, Some(Unit::AmxInt8))));
        assert_eq!(seen(Multiplied::Int8(32), &[]), None);
    }

    #[test]
    fn without_a_probe_there_is_no_share() {
        let mut evidence = evidence(&[1e9]);
        evidence.probes.clear();
        let limit = limit(&testing::plan(&["a"]), &evidence, "a", Precision::F32, WORK);
        assert_eq!((limit.decode, limit.prefill), (None, None));
    }
}

#[cfg(test)]
mod sanity_tests {
    use super::*;
    use crate::facts::testing::{self, loaded, usage};
    use crate::judge::report::verdicts::Unmeasurable;
    use protocol::{Event, Marks, Sample};

    /// One process: two gaps of 10 ms after a first token of 5 ms, in `wall_ms`.
    fn evidence(wall_ms: u64, peak_bytes: u64, bandwidth: f64) -> Evidence {
        let case = Sample { marks_ns: Marks::new(5_000_000, [10_000_000; 2]), ..Sample::default() };
        let mut usage = usage();
        (usage.wall_ns, usage.peak_bytes) = (wall_ms * 1_000_000, Some(peak_bytes));
        let events = vec![Event::Loaded(loaded(1_000_000)), Event::Usage(usage)];
        Evidence {
            runs: vec![testing::measured("a", 0, events, vec![vec![case]])],
            probes: vec![testing::probe(bandwidth, 1.0)],
            rounds: 1,
            ..Evidence::default()
        }
    }

    /// One megabyte of weights.
    fn limits() -> BTreeMap<String, Limit> {
        let limit = Limit {
            weights: 1e6,
            kv_cache: 0.0,
            operations: 0.0,
            decode: None,
            prefill: None,
            encoding: None,
        };
        BTreeMap::from([("a".to_owned(), limit)])
    }

    fn kinds(evidence: &Evidence) -> Vec<Kind> {
        flags(&testing::plan(&["a"]), evidence, &limits()).into_iter().map(|flag| flag.kind).collect()
    }

    #[test]
    fn a_result_that_can_be_has_no_flag() {
        assert_eq!(kinds(&evidence(25, 2_000_000, 1e9)), []);
    }

    #[test]
    fn impossible_results_are_flagged() {
        // A hundred steps a second over 1 MB of weights need 100 MB/s.
        assert_eq!(kinds(&evidence(25, 2_000_000, 60e6)), [Kind::AboveBandwidth]);
        assert_eq!(kinds(&evidence(50, 2_000_000, 1e9)), [Kind::SamplesDisagree]);
        assert_eq!(kinds(&evidence(25, 900_000, 1e9)), [Kind::BelowWeights]);
    }

    #[test]
    fn what_depends_on_an_impossible_result_has_no_verdict() {
        let spoilt = |kind| {
            let flag = Flag { framework: "a".into(), kind, finding: "it cannot be".into() };
            [Metric::Throughput, Metric::Total, Metric::PeakMemory].map(|metric| flag.spoils(metric))
        };
        assert_eq!(spoilt(Kind::AboveBandwidth), [true, true, false]);
        assert_eq!(spoilt(Kind::BelowWeights), [false, false, true]);
        let plan = testing::plan(&["a", "b"]);
        let mut slower = evidence(25, 2_000_000, 1e9);
        slower.runs[0].framework = "b".into();
        let mut both = evidence(25, 2_000_000, 1e9);
        both.runs.extend(slower.runs);
        let compared =
            crate::judge::report::verdicts::compare(&plan, &both, vec!["a".into(), "b".into()], None);
        let flag = Flag { framework: "b".into(), kind: Kind::BelowWeights, finding: "it cannot be".into() };
        let judged = crate::judge::report::verdicts::without_impossible(compared, &[flag]);
        let reasons = judged.iter().filter(|one| matches!(one.reason, Some(Unmeasurable::Impossible { .. })));
        assert_eq!(reasons.map(|one| one.metric).collect::<Vec<_>>(), [Metric::PeakMemory]);
    }

    #[test]
    fn f32_faster_than_half_the_bytes_is_flagged() {
        let mut evidence = evidence(25, 2_000_000, 1e9);
        let mut slower = evidence.runs[0].clone();
        slower.framework = "b".into();
        slower.turns[0].sample.marks_ns = Marks::new(5_000_000, [12_000_000, 8_500_000]);
        evidence.runs.push(slower);
        let mut plan = testing::plan(&["a", "b"]);
        plan.contenders[1].precision = bundle::Precision::F16;
        plan.contenders[1].engine.framework = "a".into();
        let found: Vec<_> =
            flags(&plan, &evidence, &limits()).into_iter().map(|f| (f.framework, f.kind)).collect();
        assert_eq!(found, [("b".to_owned(), Kind::WiderIsFaster)]);
    }
}
