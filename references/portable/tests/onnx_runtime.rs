//! The portable graph, which is for other runtimes. Here ONNX Runtime runs it and compares it with the
//! reference.

use std::borrow::Cow;

use bundle::{Bundle, Precision};
use conformance::{Reference, TOLERANCE, architectures, each, max_abs_difference, tiny};
use onnx::graph::{
    COS, LAST_POSITIONS, LOGITS, POSITIONS, ROWS, SIN, TOKENS, TOTAL, cache_names, hidden_state,
};
use onnx::{IN_MEMORY, Storage, Written};
use ort::session::{Session, SessionInputValue};
use ort::value::{DynValue, Tensor};
use reference_portable::{FEATURES, Form};

/// A session of the portable graph and the cache of one batch.
struct Portable {
    session: Session,
    bundle: Bundle,
    form: Form,
    batch: usize,
    filled: usize,
    cache: Vec<DynValue>,
}

/// The results of one run.
struct Output {
    logits: Vec<f32>,
    hidden: Vec<Vec<f32>>,
}

impl Portable {
    fn load(bundle: &Bundle, form: Form, batch: usize, storage: impl FnOnce(String) -> Storage) -> Portable {
        let weights = bundle.weights_path(Precision::F32).expect("held");
        let (folder, file) = engine_ort::location(&weights).expect("a path");
        let graph = reference_portable::build(bundle, form, storage(file), true).expect("writes");
        let session = session(folder, graph).expect("a session");
        let config = bundle.config();
        let empty = || {
            let shape = [batch, config.kv_heads, 0, config.head_dim];
            Tensor::from_array((shape, Vec::<f32>::new())).expect("a tensor").into_dyn()
        };
        let cache = (0..2 * config.layers.len()).map(|_| empty()).collect();
        Portable { session, bundle: bundle.clone(), form, batch, filled: 0, cache }
    }

    /// Appends `[batch, count]` tokens.
    fn append(&mut self, tokens: &[u32]) -> Output {
        let (config, batch) = (self.bundle.config().clone(), self.batch);
        let (count, total) = (tokens.len() / batch, self.filled + tokens.len() / batch);
        let mut inputs: Vec<(Cow<'static, str>, SessionInputValue<'static>)> = Vec::new();
        let integers = |shape: &[usize], values: Vec<i64>| {
            Tensor::from_array((shape.to_vec(), values)).expect("a tensor").into_dyn()
        };
        let ids = tokens.iter().map(|&token| i64::from(token)).collect();
        inputs.push((TOKENS.into(), integers(&[batch, count], ids).into()));
        inputs.push((ROWS.into(), integers(&[batch * count], (0..(batch * count) as i64).collect()).into()));
        if self.form.takes_positions(&config) {
            let row: Vec<i64> = (self.filled as i64..total as i64).collect();
            inputs.push((POSITIONS.into(), integers(&[batch, count], row.repeat(batch)).into()));
        }
        if self.form == Form::Contributed {
            let small = |shape: Vec<usize>, values| {
                Tensor::<i32>::from_array((shape, values)).expect("a tensor").into_dyn()
            };
            inputs.push((LAST_POSITIONS.into(), small(vec![batch], vec![total as i32 - 1; batch]).into()));
            inputs.push((TOTAL.into(), small(vec![], vec![total as i32]).into()));
        }
        if let Some(rotary) = config.rotations.first() {
            let (cos, sin) = bundle::rotary::cos_sin(rotary, config.head_dim, config.max_positions);
            for (name, table) in [(COS, cos), (SIN, sin)] {
                let shape = [config.max_positions, config.head_dim / 2];
                inputs.push((
                    name.into(),
                    Tensor::from_array((shape, table)).expect("a tensor").into_dyn().into(),
                ));
            }
        }
        let names: Vec<_> = (0..config.layers.len()).flat_map(cache_names).collect();
        for (names, past) in names.iter().zip(self.cache.drain(..)) {
            inputs.push((names.past.clone().into(), past.into()));
        }
        let mut outputs = self.session.run(inputs).expect("runs");
        self.filled = total;
        self.cache = names.iter().map(|names| outputs.remove(&names.present).expect("present")).collect();
        let floats = |name: &str| outputs[name].try_extract_tensor::<f32>().expect("f32").1.to_vec();
        Output {
            logits: floats(LOGITS),
            hidden: (0..=config.layers.len()).map(|layer| floats(&hidden_state(layer))).collect(),
        }
    }
}

fn session(folder: String, graph: Written) -> ort::Result<Session> {
    let key = "session.model_external_initializers_file_folder_path";
    let environment = engine_ort::environment().expect("a library");
    let mut builder = Session::builder(&environment)?.with_config_entry(key, folder)?;
    if let Some(memory) = graph.in_memory.filter(|memory| !memory.is_empty()) {
        builder = builder.with_external_initializer_file_in_memory(IN_MEMORY, memory.into())?;
    }
    builder.commit_from_memory(&graph.model)
}

fn each_model(check: impl Fn(&Bundle, &Reference, Form)) {
    for model in tiny().chain(each(architectures())) {
        let config = model.bundle.config();
        // The texts are longer than their windows.
        if config.beyond(&FEATURES).is_some() || config.window().is_some() {
            continue;
        }
        for form in [Form::Contributed, Form::Standard] {
            println!("{form:?}");
            check(&model.bundle, &model.reference, form);
        }
    }
}

#[test]
fn a_prompt_gives_the_logits_and_hidden_states_of_the_reference() {
    each_model(|bundle, reference, form| {
        let mut portable = Portable::load(bundle, form, reference.batch, Storage::File);
        let output = portable.append(&reference.tokens);
        let difference = max_abs_difference(&output.logits, &reference.logits);
        assert!(difference <= TOLERANCE, "logits differ by {difference}");
        assert_eq!(output.hidden.len(), reference.hidden.len());
        for (layer, (ours, theirs)) in output.hidden.iter().zip(&reference.hidden).enumerate() {
            let difference = max_abs_difference(ours, theirs);
            assert!(difference <= TOLERANCE, "hidden state {layer} differs by {difference}");
        }
    });
}

#[test]
fn a_prompt_continued_token_by_token_gives_the_same_with_weights_in_memory() {
    each_model(|bundle, reference, form| {
        let mut portable = Portable::load(bundle, form, 1, |_| Storage::Memory(Vec::new()));
        let tokens = &reference.tokens[..reference.positions];
        let mut logits = portable.append(&tokens[..5]).logits;
        for token in &tokens[5..] {
            logits.extend(portable.append(&[*token]).logits);
        }
        let difference = max_abs_difference(&logits, &reference.logits[..logits.len()]);
        assert!(difference <= TOLERANCE, "logits differ by {difference}");
    });
}
