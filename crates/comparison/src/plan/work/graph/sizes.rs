//! Sizes of dimensions: from the request, and from arrays in files.

use std::collections::BTreeMap;
use std::result::Result;

use bundle::{Graph as Description, Size};

use super::Given;

/// The requested sizes, by the names in the file. A dimension may also be named by its place, as in
/// `images.0`.
pub(super) fn named(
    graph: &Description,
    asked: &BTreeMap<String, Vec<u32>>,
) -> Result<BTreeMap<String, Vec<u32>>, String> {
    let places = graph.inputs.iter().flat_map(|input| {
        input
            .shape
            .iter()
            .flatten()
            .enumerate()
            .map(move |(axis, size)| (format!("{}.{axis}", input.name), size))
    });
    let places: BTreeMap<String, &Size> = places.collect();
    let free = graph.free();
    let mut found = BTreeMap::new();
    for (typed, sizes) in asked {
        let name = match places.get(typed) {
            _ if free.contains(&typed.as_str()) => typed,
            Some(Size::Free(name)) => name,
            _ => {
                let dims = if free.is_empty() { "none".to_owned() } else { free.join(", ") };
                return Err(format!("it has no free dimension {typed:?}; it has {dims}"));
            }
        };
        if found.insert(name.clone(), sizes.clone()).is_some() {
            return Err(format!("--dim sets the dimension {name:?} twice"));
        }
    }
    Ok(found)
}

/// Sizes of free dimensions that follow from the shapes of files.
pub(super) fn of_files(
    graph: &Description,
    given: &BTreeMap<String, Given>,
) -> Result<BTreeMap<String, usize>, String> {
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for input in &graph.inputs {
        let Some(array) = given.get(&input.name) else { continue };
        let (name, shape) = (&input.name, &array.shape);
        if array.dtype != input.dtype {
            return Err(format!(
                "its input {name:?} takes {}, and the file holds {}: write it with .astype({:?})",
                input.dtype,
                array.dtype,
                input.dtype.name()
            ));
        }
        let Some(wanted) = &input.shape else { continue };
        let fits = |(size, found): (&Size, &usize)| !matches!(size, Size::Fixed(size) if size != found);
        if wanted.len() != shape.len() || !wanted.iter().zip(shape).all(fits) {
            return Err(format!(
                "its input {name:?} has the shape {}, and the file's is {}",
                shape_words(wanted),
                dims(shape)
            ));
        }
        for (size, &found) in wanted.iter().zip(shape) {
            let Size::Free(size) = size else { continue };
            let before = *sizes.entry(size.clone()).or_insert(found);
            if before != found {
                return Err(format!("its files give the dimension {size:?} two sizes, {before} and {found}"));
            }
        }
    }
    Ok(sizes)
}

/// Every combination of the requested sizes; the last name changes fastest.
pub(super) fn combinations(dims: &BTreeMap<String, Vec<u32>>) -> Vec<BTreeMap<String, usize>> {
    let mut all = vec![BTreeMap::new()];
    for (name, sizes) in dims {
        let with = |before: &BTreeMap<String, usize>| -> Vec<_> {
            let one = |&size: &u32| {
                let mut after = before.clone();
                after.insert(name.clone(), size as usize);
                after
            };
            sizes.iter().map(one).collect()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// A shape in writing: "1x3x640x640".
pub fn dims(shape: &[usize]) -> String {
    match shape {
        [] => "scalar".to_owned(),
        shape => shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x"),
    }
}

pub(super) fn shape_words(shape: &[Size]) -> String {
    let size = |size: &Size| match size {
        Size::Fixed(size) => size.to_string(),
        Size::Free(name) => name.clone(),
    };
    if shape.is_empty() { "scalar".to_owned() } else { shape.iter().map(size).collect::<Vec<_>>().join("x") }
}
