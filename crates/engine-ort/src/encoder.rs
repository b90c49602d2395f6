//! Encoders: runs the graph and extracts vectors or scores from its outputs.

use std::borrow::Cow;

use bundle::{ModelConfig, Pooling, RelativePositions, Scored, rotary};
use onnx::fused::encoder::{
    CELLS, LENGTHS, PADDED, RELATIVE, SCORED, SHARES, TYPES, UNPADDED, UNSEEN, activation_operator, blocks,
    output, state, window_in_blocks,
};
use onnx::graph::{LAST_POSITIONS, POSITIONS, SCORES, TOKENS, TOTAL, rotary_names};
use ort::session::{OutputSelector, RunOptions, SessionInputValue};
use ort::value::{PrimitiveTensorElementType, Tensor};
use worker::engine::{Encode, EncodeTask, HiddenStates, Padded, Result, Texts};

use crate::model::Model;
use crate::runtime::framework;

pub(crate) struct Encoder {
    pub(crate) model: Model,
    numbers: Vec<f32>,
    computed: usize,
    hidden: Option<Vec<Vec<f32>>>,
}

/// The kernels other than the products, human-readable.
pub(crate) fn kernels(model: &Model) -> Vec<String> {
    let config = &model.config;
    let norms = match (config.rms_norm, config.form.norm_without_bias) {
        (true, _) => "SkipSimplifiedLayerNormalization",
        (false, true) => "Add and LayerNormalization without biases",
        (false, false) => "Add and LayerNormalization with biases",
    };
    let layout = match model.running.options.padding {
        Some(padding) => format!("{padding}, fused q/k/v"),
        None => "attention on texts padded to the longest, linear layers of texts unpadded, fused q/k/v"
            .to_owned(),
    };
    let blocks = window_in_blocks(config).map(|_| "layers with a window on blocks of texts");
    let usual = [model.attention.operators(), norms, activation_operator(config), &layout];
    usual.into_iter().chain(blocks).map(str::to_owned).collect()
}

impl Encoder {
    pub(crate) fn new(model: Model) -> Encoder {
        let hidden = model.hidden_states.then(Vec::new);
        Encoder { model, numbers: Vec::new(), computed: 0, hidden }
    }

    /// Positions that attention computes for each text.
    fn width(&self, texts: Texts<'_>) -> usize {
        self.model.running.options.padding.map_or(texts.longest(), |padding| padding.width(&texts))
    }

    fn run(&mut self, texts: Texts<'_>, task: EncodeTask) -> ort::Result<()> {
        let config = &self.model.config;
        let name = match task {
            EncodeTask::Embed { .. } => output(config),
            EncodeTask::Score => SCORES.to_owned(),
        };
        let states = 0..if self.hidden.is_some() { config.layers.len() + 1 } else { 0 };
        let states: Vec<String> = states.map(|layers| state(config, layers)).collect();
        // The last hidden state may be the requested output itself.
        let others = states.iter().filter(|state| **state != name);
        let selected = others.fold(OutputSelector::no_default().with(&name), OutputSelector::with);
        let options = RunOptions::new()?.with_outputs(selected);
        let width = self.width(texts);
        let encoder = config.encoder.as_ref().filter(|_| self.model.running.options.padding.is_some());
        let padded = encoder.map(|encoder| Padded::to(width, texts, encoder.pad_token));
        let laid_out = padded.as_ref().map_or(texts, Padded::texts);
        let inputs = Inputs::new(&self.model, laid_out, texts.lengths)?;
        let outputs = self.model.running.session.run_with_options(inputs.0, &options)?;
        let (_, found) = outputs[name.as_str()].try_extract_tensor::<f32>()?;
        self.numbers = texts.numbers(laid_out.lengths, (task, config), found);
        if self.hidden.is_some() {
            let hidden = config.hidden_size;
            let tokens = |rows: &[f32]| -> Vec<f32> {
                if padded.is_none() {
                    return rows.to_vec();
                }
                let cells = texts.cells(width);
                cells.flat_map(|cell| &rows[cell * hidden..(cell + 1) * hidden]).copied().collect()
            };
            let extracted = |name: &String| Ok(tokens(outputs[name.as_str()].try_extract_tensor::<f32>()?.1));
            self.hidden = Some(states.iter().map(extracted).collect::<ort::Result<_>>()?);
        }
        Ok(())
    }
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32]> {
        texts.check(&self.model.config, task)?;
        self.run(texts, task).map_err(framework)?;
        self.computed = texts.lengths.len() * self.width(texts);
        Ok(&self.numbers)
    }

    fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    /// Positions that attention computes: it pads texts to the longest. Linear layers compute no padding,
    /// unless the option `padded` is set.
    fn positions(&self) -> usize {
        self.computed
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        HiddenStates::kept(self.hidden.clone())
    }
}

// The inputs of one run, for texts of different lengths.

/// The inputs of a run, by name.
#[derive(Default)]
struct Inputs(Vec<(Cow<'static, str>, SessionInputValue<'static>)>);

/// How layers with a window divide texts into blocks.
struct Blocks {
    /// Keys before the first query's own.
    before: usize,
    queries: usize,
    keys: usize,
}

impl Blocks {
    /// About as many queries per block as a query sees keys, or the whole text if it is hardly longer.
    fn new(window: usize, longest: usize) -> Blocks {
        let before = window.saturating_sub(1);
        let queries = (2 * before).max(1);
        let keys = queries + 2 * before;
        match longest <= keys {
            true => Blocks { before: 0, queries: longest, keys: longest },
            false => Blocks { before, queries, keys },
        }
    }
}

impl Inputs {
    /// All inputs of the graph. `lengths`: tokens of each text without padding.
    fn new(model: &Model, texts: Texts<'_>, lengths: &[usize]) -> ort::Result<Inputs> {
        let config = &model.config;
        let (count, longest) = (lengths.len(), longest(texts.lengths));
        let first = config.encoder.as_ref().map_or(0, |encoder| encoder.first_position);
        let rows = texts.tokens.len();
        // A cell of padding refers to the first row, which always exists.
        let mut padded = vec![0i64; count * longest];
        let (mut positions, mut unpadded) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        for (text, &length) in texts.lengths.iter().enumerate() {
            for place in 0..length {
                let cell = text * longest + place;
                padded[cell] = unpadded.len() as i64;
                unpadded.push(cell as i64);
                positions.push((first + place) as i64);
            }
        }
        let mut inputs = Inputs::default();
        inputs.add(TOKENS, &[rows], texts.tokens.iter().map(|&token| i64::from(token)).collect())?;
        if config.position_embedding().is_some() {
            inputs.add(POSITIONS, &[rows], positions)?;
        }
        if config.token_type_embedding().is_some() {
            let mut types: Vec<i64> = texts.types.iter().map(|&kind| i64::from(kind)).collect();
            types.resize(rows, 0);
            inputs.add(TYPES, &[rows], types)?;
        }
        if model.running.options.padding.is_some() {
            inputs.add(CELLS, &[3], vec![count as i64, longest as i64, -1])?;
        } else {
            inputs.add(UNPADDED, &[rows], unpadded)?;
            inputs.add(PADDED, &[count, longest], padded)?;
        }
        inputs.add_attention(model, (texts.lengths, lengths))?;
        let head = config.scoring();
        if let Some(Scored::Texts(pooling)) = head.map(|head| head.of) {
            inputs.add_pooling(pooling, (texts.lengths, lengths))?;
        }
        Ok(inputs)
    }

    fn add<T: PrimitiveTensorElementType + Clone + std::fmt::Debug + 'static>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        shape: &[usize],
        values: Vec<T>,
    ) -> ort::Result<()> {
        self.0.push((name.into(), Tensor::from_array((shape, values))?.into()));
        Ok(())
    }

    /// Adds the inputs of attention other than queries, keys and values.
    fn add_attention(&mut self, model: &Model, (rows, lengths): (&[usize], &[usize])) -> ort::Result<()> {
        let config = &model.config;
        let (count, longest) = (lengths.len(), longest(rows));
        // Only as long as these texts: a model may have positions for far longer ones.
        let tables = rotary::tables(config, longest).into_iter().enumerate();
        let shape = [longest, config.rotary_dim() / 2];
        for (rotation, (cos, sin)) in tables {
            let [of_cos, of_sin] = rotary_names(rotation);
            self.add(of_cos, &shape, cos)?;
            self.add(of_sin, &shape, sin)?;
        }
        let tokens = lengths.iter().map(|&length| length as i32);
        if config.causal {
            self.add(LAST_POSITIONS, &[count], tokens.map(|length| length - 1).collect())?;
            return self.add(TOTAL, &[], vec![longest as i32]);
        }
        self.add(LENGTHS, &[count], tokens.collect())?;
        let relative = config.encoder.as_ref().and_then(|encoder| encoder.relative);
        if let (Some(relative), Some(table)) = (relative, &model.relative) {
            let added = relative_scores(relative, (table, config.heads), longest);
            self.add(RELATIVE, &[1, config.heads, longest, longest], added)?;
        }
        match window_in_blocks(config) {
            Some(window) => self.add_blocks(window, (rows, lengths)),
            None => Ok(()),
        }
    }

    /// Adds the inputs of layers with a window.
    fn add_blocks(&mut self, window: usize, (rows, lengths): (&[usize], &[usize])) -> ort::Result<()> {
        let Blocks { before, queries, keys } = Blocks::new(window, longest(rows));
        let (mut of_queries, mut of_keys, mut is_token, mut cells) = (vec![], vec![], vec![], vec![]);
        let mut row = 0;
        for (&rows, &length) in rows.iter().zip(lengths) {
            for start in (0..rows).step_by(queries) {
                let cell = of_queries.len();
                cells.extend((cell..).map(|cell| cell as i64).take(queries.min(rows - start)));
                // Padding refers to the text's first row, which always exists.
                let row_of = |position: Option<usize>| (row + position.unwrap_or(0)) as i64;
                let positions = (start..start + queries).map(|place| Some(place).filter(|&at| at < rows));
                of_queries.extend(positions.map(row_of));
                let positions = (start..start + keys)
                    .map(|place| place.checked_sub(before).filter(|&position| position < length));
                is_token.extend(positions.clone().map(|position| i32::from(position.is_some())));
                of_keys.extend(positions.map(row_of));
            }
            row += rows;
        }
        let mut mask = vec![0.0; queries * keys];
        for (query, row) in (before..).zip(mask.chunks_exact_mut(keys)) {
            row[..(query + 1).saturating_sub(window)].fill(UNSEEN);
            row[(query + window).min(keys)..].fill(UNSEEN);
        }
        let count = is_token.len() / keys;
        self.add(blocks::QUERIES, &[count, queries], of_queries)?;
        self.add(blocks::KEYS, &[count, keys], of_keys)?;
        self.add(blocks::TOKENS, &[count, keys], is_token)?;
        self.add(blocks::FIRST, &[1], vec![before as i64])?;
        self.add(blocks::WINDOW, &[1, 1, queries, keys], mask)?;
        self.add(blocks::ROWS, &[row], cells)
    }

    /// Adds the inputs from which a head computes the vectors of texts.
    fn add_pooling(&mut self, pooling: Pooling, (rows, lengths): (&[usize], &[usize])) -> ort::Result<()> {
        let (count, longest) = (lengths.len(), longest(rows));
        if pooling == Pooling::Mean {
            let mut shares = vec![0.0; count * longest];
            for (row, &length) in shares.chunks_exact_mut(longest).zip(lengths) {
                row[..length].fill((length as f32).recip());
            }
            return self.add(SHARES, &[count, 1, longest], shares);
        }
        let mut end = 0;
        let scored = rows.iter().zip(lengths).map(|(&rows, &length)| {
            let first = end;
            end += rows;
            (if pooling == Pooling::Last { first + length - 1 } else { first }) as i64
        });
        self.add(SCORED, &[count], scored.collect())
    }
}

/// Biases for the score of each query and key, `[heads, longest, longest]`, from a table of
/// `[buckets, heads]`.
fn relative_scores(relative: RelativePositions, (table, heads): (&[f32], usize), longest: usize) -> Vec<f32> {
    // A bias depends only on the distance, so rows are pieces of one list, from the furthest key before a
    // query to the furthest after it.
    let before = (1..longest).rev().map(|apart| relative.bucket(apart, 0));
    let buckets: Vec<usize> = before.chain((0..longest).map(|apart| relative.bucket(0, apart))).collect();
    let mut added = Vec::with_capacity(heads * longest * longest);
    for head in 0..heads {
        let by_distance: Vec<f32> = buckets.iter().map(|bucket| table[bucket * heads + head]).collect();
        for query in 0..longest {
            added.extend_from_slice(&by_distance[longest - 1 - query..][..longest]);
        }
    }
    added
}

fn longest(lengths: &[usize]) -> usize {
    lengths.iter().copied().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_hardly_longer_than_a_window_is_one_block() {
        let blocks = |window, longest| {
            let Blocks { before, queries, keys } = Blocks::new(window, longest);
            (before, queries, keys)
        };
        assert_eq!([blocks(65, 256), blocks(65, 257)], [(0, 256, 256), (64, 128, 256)]);
        assert_eq!([blocks(1, 1), blocks(1, 9)], [(0, 1, 1), (0, 1, 1)]);
    }

    #[test]
    fn a_pair_has_the_row_of_its_distance_for_every_head() {
        let relative = RelativePositions { buckets: 32, distance: 128 };
        let table: Vec<f32> = (0..64).map(|number| number as f32).collect();
        let added = relative_scores(relative, (&table, 2), 9);
        for (place, found) in added.iter().enumerate() {
            let (head, query, key) = (place / 81, place / 9 % 9, place % 9);
            assert_eq!(*found, table[2 * relative.bucket(query, key) + head], "{head} {query} {key}");
        }
    }
}
