//! A layer: attention and the feed-forward block, with their norms.

use bundle::ModelConfig;
use candle_core::{Result, Tensor};
use engine::EngineError;

use crate::attention::Attention;
use crate::block::SublayerNorms;
use crate::linear::Linear;
use crate::mlp::Mlp;
use crate::reader::Reader;

/// Rows that go through a feed-forward block together: enough for products at full speed, and few enough that
/// intermediate results stay in cache and use memory that is already mapped.
const MLP_ROWS: usize = 256;

#[derive(Debug)]
pub(crate) struct Layer {
    attention_norms: SublayerNorms,
    qkv: Linear,
    attention: Attention,
    output: Linear,
    mlp_norms: SublayerNorms,
    mlp: Mlp,
}

impl Layer {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        index: usize,
    ) -> std::result::Result<Layer, EngineError> {
        let names = config.layer(index);
        let place = |norms| SublayerNorms::read(reader, config, norms);
        Ok(Layer {
            attention_norms: place([&names.attention_norm, &names.post_attention_norm])?,
            qkv: Linear::read(reader, &names.qkv)?,
            attention: Attention::read(reader, config, index)?,
            output: Linear::read(reader, &names.output)?,
            mlp_norms: place([&names.mlp_norm, &names.post_mlp_norm])?,
            mlp: Mlp::read(reader, config, &names)?,
        })
    }

    pub(crate) fn linears(&self) -> [&Linear; 4] {
        let [gate_up, down] = self.mlp.linears();
        [&self.qkv, &self.output, gate_up, down]
    }

    /// Runs both blocks on the residual stream `x`, `[rows, hidden]`, in place. `attend` computes attention
    /// from rows of queries, keys and values.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        attend: impl FnOnce(&Attention, &Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        let qkv = self.qkv.forward(&self.attention_norms.enter(x)?)?;
        let attended = attend(&self.attention, &qkv)?;
        drop(qkv);
        self.attention_norms.leave(x, self.output.forward(&attended)?)?;
        let rows = x.dim(0)?;
        // All rows at once, so that the weights are converted once.
        let converted = self.mlp.linears().iter().any(|linear| linear.weight().is_converted());
        let piece = if converted { rows } else { MLP_ROWS };
        for start in (0..rows).step_by(piece) {
            let x = x.narrow(0, start, piece.min(rows - start))?;
            self.mlp_norms.leave(&x, self.mlp.forward(&self.mlp_norms.enter(&x)?)?)?;
        }
        Ok(())
    }
}
