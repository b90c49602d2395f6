//! Runs of an ONNX file: every output of every timed run is compared with the reference's.

use bundle::Dtype;
use half::f16;
use protocol::{Tensor, Values};

use super::{AudioSize, Selection};
use crate::facts::agreement::VectorAgreement;
use crate::history::Case;
use crate::judge::metrics::Metric::*;
use crate::plan::work::Graph;
use crate::plan::work::graph::Audio;
use crate::plan::{Work, WorkKind};

pub(super) const NAME: &str = "graph";

pub(super) const RUNS: Selection = Selection {
    replaced: &[
        (Latency, RunTime),
        (Throughput, RunThroughput),
        (FirstToken, RunTime),
        (PrefillThroughput, RunThroughput),
        (Total, RunTime),
    ],
    replaces_in_tables: true,
    shown: &[],
    follows: &[(RunTime, RunThroughput)],
};

/// The same where it is known how much audio a run is about.
pub(super) const AUDIO: Selection = Selection {
    replaced: &[
        (Latency, RunTime),
        (Throughput, RunThroughput),
        (FirstToken, RunTime),
        (PrefillThroughput, RunThroughput),
        (Total, RealTimeFactor),
    ],
    replaces_in_tables: true,
    shown: &[],
    follows: &[(RunTime, RunThroughput), (RealTimeFactor, RunThroughput)],
};

/// How the length of a request's audio is known.
pub(super) fn audio(work: &Work) -> Option<AudioSize> {
    let Work::Graph(graph) = work else { return None };
    Some(match graph.audio.as_ref()? {
        Audio::Seconds(seconds) => {
            let runs = graph.cases.first().map_or(1, |case| case.sets);
            AudioSize::Whole((seconds * runs as f64 * 1e9) as u64)
        }
        Audio::Output { name, rate } => AudioSize::Output {
            place: graph.outputs.iter().position(|output| output == name)?,
            sample_ps: (1e12 / rate) as u64,
        },
    })
}

/// The kind of work of a record of runs.
pub(super) fn kind(case: &Case) -> WorkKind {
    if case.other.contains_key(AUDIO_FIELD) { WorkKind::Audio } else { WorkKind::Graph }
}

const AUDIO_FIELD: &str = "audio";

/// Allowed difference between kernels of one operator with results from 0 to 1: 17 steps of f32 at 1. The
/// sigmoids at the end of rapidocr's text detector differ by 1.5e-7 to 4.5e-7 between ort with and without
/// optimisation, rten and tract (`infer`, the same inputs), where the largest is 1.5e-5. Such differences
/// change no direction. The second constant is the size at which they are the whole tolerance of f32.
const INEXACT: f64 = 2e-6;
const SMALL: f64 = 1e-2;

/// How far tensors are from the reference's.
pub(super) fn difference(ours: &[Tensor], theirs: &[Tensor]) -> VectorAgreement {
    let mut found =
        VectorAgreement { unlike: ours.len().abs_diff(theirs.len()), ..VectorAgreement::default() };
    ours.iter().zip(theirs).for_each(|(ours, theirs)| add(&mut found, ours, theirs));
    found
}

/// Adds a tensor and the reference's. Floats are compared as shares of the largest of that output, since one
/// file may give probabilities and pixels, and of [`SMALL`] at least; values that are infinite or NaN in the
/// reference have to be the same.
fn add(found: &mut VectorAgreement, ours: &Tensor, theirs: &Tensor) {
    let theirs_shape = &theirs.shape;
    let is_alike = (&ours.name, &ours.dtype, &ours.shape) == (&theirs.name, &theirs.dtype, &theirs.shape);
    let Some(dtype) =
        Dtype::from_name(&theirs.dtype).filter(|_| is_alike && ours.data.len() == theirs.data.len())
    else {
        found.unlike += 1;
        return;
    };
    found.numbers += theirs.data.len() / dtype.bytes();
    if !dtype.is_float() {
        let pairs = ours.data.chunks_exact(dtype.bytes()).zip(theirs.data.chunks_exact(dtype.bytes()));
        found.unequal += pairs.filter(|(ours, theirs)| ours != theirs).count();
        found.compared += 1;
        return;
    }
    let (mut ours, mut theirs) = (floats(dtype, &ours.data), floats(dtype, &theirs.data));
    found.look_at(&theirs);
    let width = theirs_shape.last().copied().filter(|&width| width > 1 && theirs_shape.len() > 1);
    if let Some(width) = width {
        let top =
            |row: &[f64]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(place, _)| place);
        let pairs = ours.chunks_exact(width).zip(theirs.chunks_exact(width));
        found.rows += theirs.len() / width;
        found.same_top += pairs.filter(|(ours, theirs)| top(ours) == top(theirs)).count();
    }
    for (ours, theirs) in ours.iter_mut().zip(&mut theirs).filter(|(_, theirs)| !theirs.is_finite()) {
        let is_same = *ours == *theirs || (ours.is_nan() && theirs.is_nan());
        (*ours, *theirs) = (if is_same { 0.0 } else { f64::NAN }, 0.0);
    }
    let scale = theirs.iter().fold(SMALL, |largest: f64, number| largest.max(number.abs()));
    let apart = ours.iter().zip(&theirs).map(|(ours, theirs)| (ours - theirs).abs());
    let farthest = apart.fold(0.0, f64::max) / scale;
    let in_step = |(ours, theirs): (f64, &f64)| if (ours - theirs).abs() <= INEXACT { *theirs } else { ours };
    let ours: Vec<f64> = ours.into_iter().zip(&theirs).map(in_step).collect();
    let scaled =
        |numbers: &[f64]| -> Vec<f32> { numbers.iter().map(|number| (number / scale) as f32).collect() };
    found.add(&scaled(&ours), &scaled(&theirs));
    found.max_abs = found.max_abs.max(farthest);
}

fn floats(dtype: Dtype, data: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::Float16 => {
            data.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f64()).collect()
        }
        Dtype::Float64 => data.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
        _ => data.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect(),
    }
}

/// The case in a record: the shapes of inputs, and their sources if these are given.
pub(super) fn case(work: &Graph) -> Case {
    let shapes = |feed: &protocol::Feed| match &feed.values {
        Values::Drawn { low, high } => serde_json::json!([feed.name, feed.shape, low, high]),
        Values::File(_) => serde_json::json!([feed.name, feed.shape, "file"]),
    };
    let inputs: Vec<Vec<serde_json::Value>> =
        work.cases.iter().map(|run| run.inputs.iter().map(shapes).collect()).collect();
    let mut other = vec![("work".to_owned(), NAME.into()), ("inputs".to_owned(), inputs.into())];
    let runs = work.cases.first().map_or(1, |case| case.sets);
    if runs > 1 && work.load.is_none() {
        other.push(("runs".to_owned(), runs.into()));
    }
    other.extend(work.audio.as_ref().map(|audio| (AUDIO_FIELD.to_owned(), serde_json::json!(audio))));
    Case { other: other.into_iter().collect(), ..Case::default() }
}

#[cfg(test)]
mod tests {
    use crate::facts::agreement::Tolerance;

    use super::*;
    use bundle::Precision;

    fn tensor(dtype: &str, shape: &[usize], data: Vec<u8>) -> Tensor {
        Tensor { name: "y".into(), dtype: dtype.into(), shape: shape.to_vec(), data }
    }

    fn floats_of(numbers: &[f32]) -> Tensor {
        tensor("float32", &[numbers.len()], numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    fn objection(ours: &Tensor, theirs: &Tensor) -> Option<String> {
        let mut found = VectorAgreement::default();
        add(&mut found, ours, theirs);
        found.objection(&Tolerance::for_precision(Precision::F32))
    }

    #[test]
    fn floats_are_compared_as_shares_of_the_largest_of_their_output() {
        let theirs = floats_of(&[0.0, 640.0, f32::INFINITY, f32::NAN]);
        assert_eq!(objection(&floats_of(&[0.1, 640.1, f32::INFINITY, f32::NAN]), &theirs), None);
        assert!(
            objection(&floats_of(&[0.2, 640.0, f32::INFINITY, f32::NAN]), &theirs)
                .unwrap()
                .contains("differs by")
        );
        assert!(
            objection(&floats_of(&[0.0, 640.0, f32::NEG_INFINITY, f32::NAN]), &theirs)
                .unwrap()
                .contains("finite")
        );
        let small = floats_of(&[1e-6, 5e-6]);
        assert_eq!(objection(&floats_of(&[1e-6, 6.9e-6]), &small), None);
        assert!(objection(&floats_of(&[1e-6, 7.1e-6]), &small).is_some(), "also where all are small");
        let many = |number: f32| floats_of(&[number; 64]);
        let bent = |number: f32| floats_of(&[[1e-5; 32], [number; 32]].concat());
        assert_eq!(objection(&bent(1.1e-5), &many(1e-5)), None);
        assert!(objection(&floats_of(&[[1e-2; 32], [1.1e-2; 32]].concat()), &many(1e-2)).is_some());
    }

    #[test]
    fn outputs_that_say_nothing_are_counted() {
        let mut found = VectorAgreement::default();
        for theirs in
            [&[f32::NAN, f32::INFINITY][..], &[0.5, 0.5], &[0.5], &[0.5, 0.25], &[f32::NAN, 1.0], &[]]
        {
            add(&mut found, &floats_of(theirs), &floats_of(theirs));
        }
        assert_eq!((found.undefined, found.uniform, found.compared), (1, 1, 6));
        assert_eq!(found.objection(&Tolerance::for_precision(Precision::F32)), None);
    }

    #[test]
    fn whole_numbers_and_shapes_are_the_same() {
        let theirs = tensor("bool", &[2], vec![0, 1]);
        assert_eq!(objection(&theirs, &theirs), None);
        let why = objection(&tensor("bool", &[2], vec![1, 1]), &theirs).unwrap();
        assert!(why.starts_with("1 whole numbers"), "{why}");
        for other in [
            tensor("bool", &[2, 1], vec![0, 1]),
            tensor("uint8", &[2], vec![0, 1]),
            tensor("bool", &[2], vec![0]),
        ] {
            assert!(
                objection(&other, &theirs).unwrap().contains("1 of 1 vectors are missing or of another size")
            );
        }
    }
}
