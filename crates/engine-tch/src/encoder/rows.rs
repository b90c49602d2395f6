//! The rows of texts: texts of one length are adjacent.

use engine::{Texts, by_length};
use tch::{Device, TchError, Tensor};

/// Texts of one length, in adjacent rows.
pub(crate) struct Group {
    pub(crate) first_row: i64,
    pub(crate) texts: i64,
    pub(crate) length: i64,
}

impl Group {
    /// The group's part of `x`, `[rows, ..]`, as `[texts, length, ..]`.
    pub(crate) fn part(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let mut shape = x.size();
        shape.splice(..1, [self.texts, self.length]);
        x.f_narrow(0, self.first_row, self.texts * self.length)?.f_view(&shape[..])
    }
}

/// The tokens of all texts; texts of one length are adjacent.
pub(crate) struct Rows {
    pub(crate) groups: Vec<Group>,
    /// Index of each row's token in the input.
    pub(crate) tokens: Vec<usize>,
    /// Index of each text in the input, in the order of rows.
    pub(crate) texts: Vec<usize>,
}

impl Rows {
    pub(crate) fn new(texts: Texts<'_>) -> Rows {
        let starts: Vec<usize> =
            texts.lengths.iter().scan(0, |sum, &n| Some(std::mem::replace(sum, *sum + n))).collect();
        let mut rows = Rows { groups: Vec::new(), tokens: Vec::new(), texts: Vec::new() };
        for (length, places) in by_length(texts.lengths) {
            let (first_row, count) = (rows.tokens.len() as i64, places.len() as i64);
            rows.groups.push(Group { first_row, texts: count, length: length as i64 });
            for &place in &places {
                rows.tokens.extend(starts[place]..starts[place] + length);
            }
            rows.texts.extend(places);
        }
        rows
    }

    /// The position of each row's token within its text.
    pub(crate) fn positions(&self) -> impl Iterator<Item = i64> + '_ {
        self.groups.iter().flat_map(|group| (0..group.texts).flat_map(|_| 0..group.length))
    }
}

/// Whether each cell is padding, for texts padded to `width` tokens, `[texts, width]`.
pub(crate) fn padding(texts: Texts<'_>, width: usize, device: Device) -> Result<Tensor, TchError> {
    let padding = texts.padded_to(width, texts.tokens.iter().map(|_| false), true);
    Tensor::f_from_slice(&padding)?.f_view([texts.lengths.len() as i64, -1])?.f_to_device(device)
}

/// The rows of `x` in the order of the input. `places`: each row's index in the input.
pub(crate) fn in_order(x: &Tensor, places: &[usize]) -> Result<Tensor, TchError> {
    let mut rows = vec![0_i64; places.len()];
    for (row, &place) in places.iter().enumerate() {
        rows[place] = row as i64;
    }
    x.f_index_select(0, &Tensor::f_from_slice(&rows)?.f_to_device(x.device())?)
}
