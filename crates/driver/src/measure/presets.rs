//! ONNX files: how those of configs/models are run where flags do not say otherwise, and several of them as the
//! columns of one comparison.

use std::path::{Path, PathBuf};

use comparison::plan::ab::engines_of;
use comparison::plan::axes::Arm;
use comparison::plan::{Audio, Dims, Engines, Failure, NamedInput, Request, Result, State, flags};

use crate::measure::places::Places;

/// The request with the settings of its model's file for what no flag sets. Sizes that are typed leave out the inputs
/// of files, whose sizes are others.
pub(crate) fn applied(request: &Request, places: &Places) -> Result<Request> {
    let mut request = request.clone();
    for (name, file) in &mut request.graph.artefacts {
        *file = existing(file)
            .map_err(|why| Failure::usage(format!("--artefact {name}={}: {why}", file.display())))?;
    }
    let [model] = request.models.as_slice() else { return columns(request, places) };
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
    if request.time_budget_min.is_none()
        && let Some(budget) = &runs.time_budget
    {
        request.time_budget_min = Some(flags::minutes(budget).map_err(wrong)?);
    }
    if request.graph.audio.is_none()
        && let Some(audio) = &runs.audio
    {
        request.graph.audio = Some(audio.parse::<Audio>().map_err(wrong)?);
    }
    Ok(request)
}

/// The absolute path of a file that is there.
fn existing(file: &Path) -> std::result::Result<PathBuf, String> {
    match file.is_file() {
        true => std::path::absolute(file).map_err(|error| error.to_string()),
        false => Err("there is no such file".into()),
    }
}

/// Several ONNX files as columns: each framework runs each of them. The first is the model, with which the others are
/// compared.
fn columns(mut request: Request, places: &Places) -> Result<Request> {
    let is_file = |model: &String| configs::is_onnx(model) && Path::new(model).is_file();
    if !request.study.arms.is_empty() || !request.models.iter().all(is_file) {
        return Ok(request);
    }
    let files = std::mem::take(&mut request.models);
    request.models = files[..1].to_vec();
    let engines = engines_of(&request, places as &dyn Engines)?;
    for engine in &engines {
        for (place, file) in files.iter().enumerate() {
            let path = existing(Path::new(file)).map_err(|why| Failure::usage(format!("{file}: {why}")))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Two files of one name are told apart by their paths.
            let is_alone =
                files.iter().filter(|other| Path::new(other).file_name() == path.file_name()).count() == 1;
            let name = if is_alone { name } else { file.clone() };
            let label = if engines.len() == 1 { name } else { format!("{} {name}", engine.name) };
            let artefact = (place > 0).then_some(path);
            request.study.arms.push(Arm { label, engine: engine.name.clone(), artefact, ..Arm::default() });
        }
    }
    // Other weights, other types and other outputs: that is what is compared.
    request.study.varied = ["R1", "R2", "R11"].map(str::to_owned).to_vec();
    Ok(request)
}
