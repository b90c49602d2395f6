//! Models of configs/models that are ONNX files: how they are run where flags do not say otherwise.

use comparison::plan::{Audio, Dims, Failure, NamedInput, Request, Result, State};

use crate::measure::places::Places;

/// The request with the settings of its model's file for what no flag sets. Sizes that are typed leave out the inputs of
/// files, whose sizes are others.
pub(crate) fn applied(request: &Request, places: &Places) -> Result<Request> {
    let mut request = request.clone();
    let [model] = request.models.as_slice() else { return Ok(request) };
    if !places.configs.file("models", model).is_file() {
        return Ok(request);
    }
    let runs = configs::model(&places.configs, model)?.onnx;
    let wrong = |why: String| Failure::usage(format!("configs/models/{model}.toml: {why}"));
    let root = places.root().display().to_string();
    let has_sizes = !request.graph.dims.is_empty();
    for dim in &runs.dim {
        let Dims(dims) = dim.parse().map_err(wrong)?;
        for (name, sizes) in dims {
            request.graph.dims.entry(name).or_insert(sizes);
        }
    }
    for input in &runs.input {
        let NamedInput(name, asked) = input.replace("{root}", &root).parse().map_err(wrong)?;
        if !has_sizes || asked.path().is_none() {
            request.graph.inputs.entry(name).or_insert(asked);
        }
    }
    if request.graph.state.is_none() && !runs.state.is_empty() {
        let State(state) = runs.state.join(",").parse().map_err(wrong)?;
        request.graph.state = Some(state);
    }
    request.graph.runs = request.graph.runs.or(runs.runs);
    if request.graph.audio.is_none()
        && let Some(audio) = &runs.audio
    {
        request.graph.audio = Some(audio.parse::<Audio>().map_err(wrong)?);
    }
    Ok(request)
}
