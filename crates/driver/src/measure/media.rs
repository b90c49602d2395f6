//! Pictures and sound as inputs of an ONNX file: `.png` and `.wav` files, in the shape and the range that it takes.

use std::collections::BTreeMap;
use std::io::Cursor;

use bundle::{Dtype, GraphInput, Size};
use png::{ColorType, Transformations};

/// The numbers of an input: the shape of one run, its bytes, and the number of runs.
pub(super) type Numbers = (Vec<usize>, Vec<u8>, usize);

/// A picture, whose values from 0 to 255 become `low` to `high`: in the order that the input's three or single channels
/// tell. A type of whole numbers has them as they are.
pub(super) fn picture(bytes: &[u8], (low, high): (f64, f64), input: &GraphInput) -> Result<Numbers, String> {
    let broken = |error: png::DecodingError| format!("it is no .png file: {error}");
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(broken)?;
    let room = reader.output_buffer_size().ok_or("it is larger than memory")?;
    let mut pixels = vec![0; room];
    let frame = reader.next_frame(&mut pixels).map_err(broken)?;
    let (width, height) = (frame.width as usize, frame.height as usize);
    let has = match frame.color_type {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb | ColorType::Indexed => 3,
        ColorType::Rgba => 4,
    };
    let shape = input.shape.as_deref().unwrap_or_default();
    let is_channels = |axis: usize| match shape.get(axis) {
        Some(Size::Fixed(size)) => Some(*size).filter(|size| [1, 3].contains(size)),
        _ => None,
    };
    // A batch of one in front, if the input has a place for it.
    let front = shape.len().saturating_sub(3);
    let (channels, are_first) = match (is_channels(front), is_channels(front + 2)) {
        _ if !(3..=4).contains(&shape.len()) => (0, true),
        (Some(channels), _) => (channels, true),
        (None, Some(channels)) => (channels, false),
        (None, None) => (0, true),
    };
    if channels == 0 {
        return Err(format!("the input {:?} has no place for the 1 or 3 channels of a picture", input.name));
    }
    // Of grey, all are alike; of colours, grey is the mean.
    let value = |row: usize, column: usize, channel: usize| -> f64 {
        let pixel = &pixels[(row * width + column) * has..][..has];
        match (has, channels) {
            (1 | 2, _) => f64::from(pixel[0]),
            (_, 1) => pixel[..3].iter().map(|&part| f64::from(part)).sum::<f64>() / 3.0,
            _ => f64::from(pixel[channel]),
        }
    };
    let mut data = Vec::with_capacity(width * height * channels * input.dtype.bytes());
    let mut put = |value: f64| match input.dtype {
        Dtype::Float32 => data.extend(((low + value / 255.0 * (high - low)) as f32).to_le_bytes()),
        _ => data.push(value as u8),
    };
    if !matches!(input.dtype, Dtype::Float32 | Dtype::Uint8) {
        return Err(format!(
            "the input {:?} is of {}: pictures are float32 or uint8",
            input.name, input.dtype
        ));
    }
    let mut sizes = vec![1; front];
    if are_first {
        sizes.extend([channels, height, width]);
        for channel in 0..channels {
            (0..height).for_each(|row| (0..width).for_each(|column| put(value(row, column, channel))));
        }
    } else {
        sizes.extend([height, width, channels]);
        for row in 0..height {
            (0..width).for_each(|column| (0..channels).for_each(|channel| put(value(row, column, channel))));
        }
    }
    Ok((sizes, data, 1))
}

/// The samples of a recording from -1 to 1, those of its first channel, and how many a second has.
pub(super) fn samples(bytes: &[u8]) -> Result<(Vec<f32>, u32), String> {
    let broken = |error: hound::Error| format!("it is no .wav file that is read here: {error}");
    let mut reader = hound::WavReader::new(Cursor::new(bytes)).map_err(broken)?;
    let spec = reader.spec();
    let channels = usize::from(spec.channels).max(1);
    let scale = (1_u64 << (spec.bits_per_sample.clamp(1, 32) - 1)) as f32;
    let samples: Vec<f32> = match spec.sample_format {
        hound::SampleFormat::Float => reader.samples::<f32>().step_by(channels).collect::<Result<_, _>>(),
        hound::SampleFormat::Int => reader
            .samples::<i32>()
            .step_by(channels)
            .map(|sample| sample.map(|sample| sample as f32 / scale))
            .collect::<Result<_, _>>(),
    }
    .map_err(broken)?;
    Ok((samples, spec.sample_rate))
}

/// Sound from -1 to 1, of which every run has as many samples as the input's last dimension. With a smaller `hop`, a
/// run begins with the last samples of the one before, the first one with silence.
pub(super) fn sound(
    bytes: &[u8],
    hop: Option<usize>,
    (input, dims): (&GraphInput, &BTreeMap<String, Vec<u32>>),
) -> Result<Numbers, String> {
    let (samples, _) = samples(bytes)?;
    let Some((last, rest)) = input.shape.as_deref().and_then(<[Size]>::split_last) else {
        return Err(format!("the input {:?} has no dimension for samples", input.name));
    };
    let asked = |name: &str| dims.get(name).and_then(|sizes| sizes.first()).map(|&size| size as usize);
    let place = format!("{}.{}", input.name, rest.len());
    let window = match last {
        Size::Fixed(size) => Some(*size),
        Size::Free(name) => asked(name).or_else(|| asked(&place)),
    };
    if input.dtype != Dtype::Float32 {
        return Err(format!("the input {:?} is of {}: sound is float32", input.name, input.dtype));
    }
    let window = window.unwrap_or(samples.len());
    let hop = hop.unwrap_or(window);
    if window == 0 || hop > window {
        return Err(format!("a run has {window} samples, and the next one would begin {hop} later"));
    }
    let silence = vec![0.0; window - hop];
    let all: Vec<f32> = silence.into_iter().chain(samples).collect();
    let pieces: Vec<&[f32]> = all.windows(window).step_by(hop).collect();
    if pieces.is_empty() {
        return Err(format!("it has {} samples, and a run takes {window}", all.len() + hop - window));
    }
    let data = pieces.iter().flat_map(|piece| piece.iter().flat_map(|sample| sample.to_le_bytes())).collect();
    let mut shape = vec![1; rest.len()];
    shape.push(window);
    Ok((shape, data, pieces.len()))
}

/// A few numbers, in the input's shape if it has as many.
pub(super) fn numbers(numbers: &[f64], input: &GraphInput) -> Result<Numbers, String> {
    let fixed = |size: &Size| match size {
        Size::Fixed(size) => Some(*size),
        Size::Free(_) => None,
    };
    let shape: Option<Vec<usize>> = input.shape.as_ref().and_then(|shape| shape.iter().map(fixed).collect());
    let shape = match (shape, input.shape.as_ref().map(Vec::len)) {
        (Some(shape), _) if shape.iter().product::<usize>() == numbers.len() => shape,
        (None, Some(rank)) if rank > 0 => {
            let mut shape = vec![1; rank - 1];
            shape.push(numbers.len());
            shape
        }
        _ => return Err(format!("the input {:?} does not take {} numbers", input.name, numbers.len())),
    };
    let mut data = Vec::new();
    for number in numbers {
        match input.dtype {
            Dtype::Float32 => data.extend((*number as f32).to_le_bytes()),
            Dtype::Float64 => data.extend(number.to_le_bytes()),
            Dtype::Int32 => data.extend((*number as i32).to_le_bytes()),
            Dtype::Int64 => data.extend((*number as i64).to_le_bytes()),
            Dtype::Bool | Dtype::Uint8 => data.push(*number as u8),
            other => return Err(format!("the input {:?} is of {other}: give it a .npy file", input.name)),
        }
    }
    Ok((shape, data, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(dtype: Dtype, shape: Vec<Size>) -> GraphInput {
        GraphInput { name: "x".into(), dtype, shape: Some(shape) }
    }

    fn floats(data: &[u8]) -> Vec<f32> {
        data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn free(name: &str) -> Size {
        Size::Free(name.into())
    }

    #[test]
    fn a_picture_has_the_order_and_the_range_of_its_input() {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 2, 1);
        encoder.set_color(ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&[255, 0, 0, 0, 255, 51]).unwrap();
        let planes = input(Dtype::Float32, vec![free("n"), Size::Fixed(3), free("h"), free("w")]);
        let (shape, data, runs) = picture(&file, (-1.0, 1.0), &planes).unwrap();
        assert_eq!((shape, runs), (vec![1, 3, 1, 2], 1));
        assert_eq!(floats(&data), [1.0, -1.0, -1.0, 1.0, -1.0, -0.6]);
        let (shape, data, _) =
            picture(&file, (0.0, 1.0), &input(Dtype::Uint8, vec![free("h"), free("w"), Size::Fixed(3)]))
                .unwrap();
        assert_eq!((shape, data), (vec![1, 2, 3], vec![255, 0, 0, 0, 255, 51]));
        let grey = input(Dtype::Uint8, vec![Size::Fixed(1), free("h"), free("w")]);
        assert_eq!(picture(&file, (0.0, 1.0), &grey).unwrap().1, [85, 102]);
        let tokens = input(Dtype::Float32, vec![free("n"), free("tokens")]);
        assert!(
            picture(&file, (0.0, 1.0), &tokens).unwrap_err().contains("no place for the 1 or 3 channels")
        );
        assert!(picture(&file[..20], (0.0, 1.0), &planes).unwrap_err().starts_with("it is no .png file"));
    }

    #[test]
    fn runs_share_the_samples_that_a_hop_leaves() {
        let mut file = Cursor::new(Vec::new());
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: 16_000,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let mut writer = hound::WavWriter::new(&mut file, spec).unwrap();
        for sample in [16_384_i16, -16_384, 8_192, 0, 0] {
            writer.write_sample(sample).unwrap();
        }
        writer.finalize().unwrap();
        let file = file.into_inner();
        let one = input(Dtype::Float32, vec![free("batch"), Size::Fixed(3)]);
        let none = BTreeMap::new();
        let (shape, data, runs) = sound(&file, Some(2), (&one, &none)).unwrap();
        assert_eq!((shape, runs), (vec![1, 3], 2));
        assert_eq!(floats(&data), [0.0, 0.5, -0.5, -0.5, 0.25, 0.0]);
        let open = input(Dtype::Float32, vec![free("samples")]);
        let asked = BTreeMap::from([("samples".to_owned(), vec![2])]);
        assert_eq!(sound(&file, None, (&open, &asked)).unwrap().2, 2);
        assert_eq!(sound(&file, None, (&open, &none)).unwrap().0, [5]);
        assert!(sound(&file, Some(9), (&one, &none)).unwrap_err().contains("9 later"));
        assert!(sound(b"RIFF", None, (&one, &none)).unwrap_err().starts_with("it is no .wav file"));
    }

    #[test]
    fn a_few_numbers_have_the_shape_and_the_type_of_their_input() {
        let three = input(Dtype::Float32, vec![Size::Fixed(3)]);
        let (shape, data, _) = numbers(&[0.0, 1.0, 0.5], &three).unwrap();
        assert_eq!((shape, floats(&data)), (vec![3], vec![0.0, 1.0, 0.5]));
        let ids = input(Dtype::Int64, vec![free("batch"), free("tokens")]);
        assert_eq!(numbers(&[7.0, 8.0], &ids).unwrap().0, [1, 2]);
        assert!(numbers(&[1.0], &three).unwrap_err().contains("does not take 1 numbers"));
    }
}
