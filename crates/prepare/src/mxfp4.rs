//! MXFP4, the type of gpt-oss's experts: blocks of 32 numbers of 4 bits, two to a byte, the even one in the low half,
//! and a power of two for each block (Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0,
//! 2023).

use serde_json::Value;

use crate::safetensors::Entry;

/// Numbers of a block.
const BLOCK: usize = 32;

/// The numbers of 4 bits: a sign, two bits of exponent and one of mantissa.
const NUMBERS: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// What a scale is less than its exponent of two.
const BIAS: i32 = 127;

/// The end of the plain name of the scales of a `weight`.
pub(crate) const SCALES: &str = "weight_scales";

/// The config.json of a model whose experts are in MXFP4, without saying so; `None` of others.
pub(crate) fn without(config: &Value) -> Option<Value> {
    let mut fields =
        config.as_object().filter(|fields| fields.get("model_type") == Some(&"gpt_oss".into()))?.clone();
    let quantised = fields.remove("quantization_config")?;
    (quantised["quant_method"] == "mxfp4").then_some(Value::Object(fields))
}

/// The plain name of the scales of a weight of this one.
pub(crate) fn scales_of(plain: &str) -> String {
    plain.strip_suffix("weight").map_or(String::new(), |stem| format!("{stem}{SCALES}"))
}

/// Refuses blocks and scales that are not those of a matrix of this shape.
pub(crate) fn check(blocks: &Entry, scales: &Entry, shape: &[usize]) -> Result<(), String> {
    let &[rows, columns] = shape else { return Err("has scales, and is no matrix".into()) };
    let expected = [rows, columns / BLOCK];
    let of_blocks = [rows, columns / BLOCK, BLOCK / 2];
    let is_right = columns.is_multiple_of(BLOCK) && blocks.shape == of_blocks && scales.shape == expected;
    if is_right && blocks.dtype == "U8" && scales.dtype == "U8" {
        return Ok(());
    }
    Err(format!(
        "has blocks of shape {:?} ({}) and scales of {:?} ({}), but config.json calls for {of_blocks:?} and \
         {expected:?} of U8",
        blocks.shape, blocks.dtype, scales.shape, scales.dtype
    ))
}

/// These rows, of `columns` numbers each.
pub(crate) fn rows(blocks: &[u8], scales: &[u8], columns: usize, rows: &[usize]) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len() * columns);
    for row in rows {
        let blocks = &blocks[row * columns / 2..][..columns / 2];
        let scales = &scales[row * columns / BLOCK..][..columns / BLOCK];
        for (block, &scale) in blocks.chunks_exact(BLOCK / 2).zip(scales) {
            let scale = 2f32.powi(i32::from(scale) - BIAS);
            let numbers = block.iter().flat_map(|byte| [byte & 15, byte >> 4]);
            out.extend(numbers.map(|number| NUMBERS[usize::from(number)] * scale));
        }
    }
    out
}
