//! Quantised weights: the graph's are those of the bundle.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};

use bundle::Weights;
use bundle::quantised::INT4_GROUP;
use conformance::{
    Reference, argmax, check_model, each, logits_in_pieces, max_abs_difference, mixtures, tiny,
};
use onnx::{DataType, Dim, GraphBuilder, Products, Storage, WITH_INT8, quantised_product};
use ort::value::Tensor;
use worker::engine::{Bundle, Decode, InferenceEngine, Precision, Quantised, Settings, Want};

use super::settings;
use crate::Ort;
use crate::model::location;
use crate::runtime::Optimization;
use crate::runtime::{commit, library, session_builder};

/// `accuracy_level` of MatMulNBits for f32 arithmetic.
const IN_F32: i64 = 1;
pub(super) const QUANTISED: [Precision; 3] = [Precision::Int8, Precision::Int4, Precision::Nf4];

pub(super) fn at(precision: Precision, dequantised: bool) -> Settings {
    Settings { precision, dequantised, ..settings() }
}

/// Wᵀ as the operator decodes it, `[columns, rows]`: the identity times a layer's weight, plus a bias that is not empty.
fn transposed(
    weights: &Weights,
    (accuracy, level): (i64, Optimization),
    (weight, bias): (&Quantised, &[f32]),
) -> Vec<f32> {
    let (folder, file) = location(weights.path()).expect("a path");
    let mut graph = GraphBuilder::new("product", Storage::File(file));
    let columns = weight.columns;
    graph.input("in", DataType::Float, &[Dim::Fixed(columns), Dim::Fixed(columns)]);
    graph.output("out", DataType::Float, &[Dim::Fixed(columns), Dim::Fixed(weight.rows)]);
    let folds_constants = level.folds_constants();
    let products =
        Products { precision: weight.precision, dequantised: false, converted: false, folds_constants };
    let name = if bias.is_empty() { "" } else { "bias" };
    if !bias.is_empty() {
        graph.floats(name, &[bias.len()], bias.iter().copied());
    }
    quantised_product(&mut graph, products, accuracy, ("in", ("weight", weight, name), "out"));
    let mut session = session_builder(library().expect("a library"), level)
        .and_then(|builder| {
            let key = "session.model_external_initializers_file_folder_path";
            commit(builder.with_config_entry(key, folder)?, graph.finish())
        })
        .expect("a session");
    let mut identity = vec![0.0f32; columns * columns];
    identity.iter_mut().step_by(columns + 1).for_each(|one| *one = 1.0);
    let input = Tensor::from_array(([columns, columns], identity)).expect("a tensor");
    let outputs = session.run(ort::inputs!["in" => input]).expect("runs");
    outputs["out"].try_extract_tensor::<f32>().expect("f32").1.to_vec()
}

/// Calls `check` with weights of layers, at all precisions.
fn each_weight(check: impl Fn(&Weights, Precision, &Quantised)) {
    for model in tiny() {
        for precision in QUANTISED {
            let weights = model.bundle.weights(precision).expect("weights");
            let layer = model.bundle.config().layer(0);
            for names in [layer.qkv, layer.output, layer.gate_up, layer.down] {
                check(&weights, precision, &weights.quantised(&names.weights).expect("quantised"));
            }
        }
    }
}

#[test]
fn the_graph_holds_the_bundle_s_weights_bit_for_bit() {
    each_weight(|weights, precision, weight| {
        for level in [Optimization::Off, Optimization::All] {
            let held = transposed(weights, (IN_F32, level), (weight, &[]));
            let dequantised = weight.dequantised();
            for (row, values) in dequantised.chunks_exact(weight.columns).enumerate() {
                let column = held.iter().skip(row).step_by(weight.rows);
                assert!(column.eq(values), "{precision}, {}, row {row}", level.name());
            }
        }
    });
}

#[test]
fn the_fast_kernels_have_packed_the_bundle_s_integers() {
    each_weight(|weights, precision, weight| {
        if precision == Precision::Nf4 {
            return;
        }
        let held = transposed(weights, (WITH_INT8, Optimization::All), (weight, &[]));
        let scales_per_row = if precision == Precision::Int4 { weight.columns / INT4_GROUP } else { 1 };
        for row in 0..weight.rows {
            for (column, integer) in weight.integers(row).into_iter().enumerate() {
                let scale = weight.scale(row * scales_per_row + column * scales_per_row / weight.columns);
                let ratio = held[column * weight.rows + row] / scale;
                assert!((ratio - f32::from(integer)).abs() < 1e-3, "{precision}: {ratio} for {integer}");
            }
        }
    });
}

#[test]
fn a_bias_within_the_product_is_the_one_added_after_it() {
    each_weight(|weights, precision, weight| {
        if precision == Precision::Nf4 {
            return;
        }
        let bias: Vec<f32> = (0..weight.rows).map(|row| (row * 7 % 11) as f32 / 3.0 - 1.5).collect();
        let [alone, biased] =
            [&[][..], &bias].map(|bias| transposed(weights, (WITH_INT8, Optimization::All), (weight, bias)));
        let sums: Vec<_> =
            alone.iter().zip(bias.iter().cycle()).map(|(product, bias)| product + bias).collect();
        let difference = max_abs_difference(&sums, &biased);
        // The kernel adds it in the order that suits it.
        assert!(difference <= 1e-6, "{precision} differs by {difference}");
    });
}

/// Overwrites the f32 weights of `bundle` with the dequantised weights of `precision`.
pub(super) fn dequantise_in_place(bundle: &Bundle, precision: Precision) {
    let (source, target) =
        (bundle.weights(precision).expect("weights"), bundle.weights(Precision::F32).expect("weights"));
    let mut file = OpenOptions::new().write(true).open(target.path()).expect("writable");
    for name in bundle.config().quantised() {
        let values = source.quantised(std::slice::from_ref(&name)).expect("quantised").dequantised();
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let offset = target.tensor(&name).expect("in f32 too").file_offset;
        file.seek(SeekFrom::Start(offset)).expect("seeks");
        file.write_all(&bytes).expect("writes");
    }
}

/// The results of the f32 engine, which other tests compare with an independent implementation.
fn f32_reference(bundle: &Bundle, given: &Reference) -> Reference {
    let mut engine = Ort::load(bundle, &settings()).expect("loads");
    engine.begin(given.batch, given.positions).expect("begins");
    let logits = engine.append(&given.tokens, Want::All).expect("appends").to_vec();
    let hidden = engine.hidden_states().expect("asked for").layers;
    let prompt = &given.tokens[..given.positions];
    engine.begin(1, given.positions + given.greedy.len()).expect("begins");
    let mut greedy = vec![argmax(engine.append(prompt, Want::Last).expect("appends"))];
    while greedy.len() < given.greedy.len() {
        let last = [greedy[greedy.len() - 1]];
        greedy.push(argmax(engine.append(&last, Want::Last).expect("appends")));
    }
    Reference { logits, hidden, greedy, tokens: given.tokens.clone(), ..*given }
}

#[test]
fn in_f32_quantised_weights_give_what_their_dequantised_ones_give() {
    for mut model in tiny() {
        for precision in QUANTISED {
            println!("{precision}");
            dequantise_in_place(&model.bundle, precision);
            model.reference = f32_reference(&model.bundle, &model.reference);
            check_model::<Ort>(&model, &at(precision, true));
            let unoptimised = Settings { jit: false, ..at(precision, true) };
            check_model::<Ort>(&model, &unoptimised);
        }
    }
}

/// How far rounding activations to 8 bits may move the tiny models' logits, which reach 3. Measured: up to
/// 0.07.
const ROUNDED: f32 = 0.2;

#[test]
fn rounding_activations_to_8_bits_is_reported_and_does_not_matter() {
    for model in tiny().chain(each(mixtures())) {
        let given = &model.reference;
        let has_experts = model.bundle.config().experts(0).is_some();
        for precision in
            QUANTISED.into_iter().filter(|&precision| !has_experts || precision != Precision::Nf4)
        {
            let logits = |settings: &Settings| {
                let mut engine = Ort::load(&model.bundle, settings).expect("loads");
                let logits = logits_in_pieces(&mut engine, &given.rows(), given.positions);
                (logits, engine.in_effect().kernels[0].to_string())
            };
            let (fast, fast_kernel) = logits(&at(precision, false));
            let (exact, exact_kernel) = logits(&at(precision, true));
            let difference = max_abs_difference(&fast, &exact);
            println!("{precision}: {difference}");
            let rounded = precision != Precision::Nf4;
            let inner = if rounded { "int8 activations" } else { "f32 activations" };
            assert!(fast_kernel.contains(inner), "{fast_kernel}");
            assert!(exact_kernel.contains("dequantised"), "{exact_kernel}");
            assert!(difference <= ROUNDED, "{precision} differs by {difference}");
        }
    }
}

#[test]
fn a_quantised_embedding_is_dequantised_exactly() {
    for model in tiny() {
        let (bundle, config) = (&model.bundle, model.bundle.config());
        if !config.quantised().contains(&config.embedding()) || config.rotations.is_empty() {
            continue;
        }
        let tokens: Vec<u32> = (0..config.vocab_size as u32).step_by(3).collect();
        for precision in QUANTISED {
            let weights = bundle.weights(precision).expect("weights");
            let table = weights.quantised(&[config.embedding()]).expect("quantised");
            let mut engine = Ort::load(bundle, &at(precision, false)).expect("loads");
            engine.begin(1, tokens.len()).expect("begins");
            engine.append(&tokens, Want::Last).expect("appends");
            let mut expected = vec![0.0; tokens.len() * table.columns];
            for (row, &token) in expected.chunks_exact_mut(table.columns).zip(&tokens) {
                table.row(token as usize, row);
            }
            assert_eq!(engine.hidden_states().expect("asked for").layers[0], expected, "{precision}");
        }
    }
}
