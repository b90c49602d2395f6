//! The columns for names: those of files, and of sets of them.

use crate::{ConfigError, Engine, Result, SERVER, nearest};

/// The frameworks that this project tunes, each once: the default.
pub const ENGINES: &str = "engines";
/// The frameworks' own implementations, as they come.
pub const REFERENCES: &str = "references";
/// The frameworks' own implementations that are compared most.
pub const STOCK: &str = "stock";
const STOCK_NAMES: [&str; 5] = ["transformers", "candle-transformers", "genai", "llamacpp", "openvino"];
/// Engines, those of their variants that are columns of their own, and references.
pub const ALL: &str = "all";
/// The default order of the engines.
const USUAL: [&str; 3] = ["candle", "tch", "ort"];

/// The columns for `names`, in their order: names of `known`, the sets [`ENGINES`], [`REFERENCES`], [`STOCK`]
/// and [`ALL`], and names or sets after a dash, which are left out. A set adds the columns that are not there
/// yet; a repeated name is a column each time. Without a name, or if names are only left out, it is the
/// engines.
pub fn selected(known: &[Engine], names: &[String]) -> Result<Vec<Engine>> {
    let names: Vec<&str> = names.iter().map(|name| name.trim()).collect();
    let (left_out, wanted): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| name.starts_with('-'));
    let mut columns: Vec<Engine> = Vec::new();
    for name in if wanted.is_empty() { vec![ENGINES] } else { wanted } {
        match set(known, name) {
            None => columns.push(named(known, name)?),
            Some(set) => {
                let new =
                    set.into_iter().filter(|engine| columns.iter().all(|there| there.name != engine.name));
                columns.extend(new.cloned().collect::<Vec<_>>());
            }
        }
    }
    for name in &left_out {
        let name = &name[1..];
        let out: Vec<String> = match set(known, name) {
            Some(set) => set.into_iter().map(|engine| engine.name.clone()).collect(),
            None => vec![named(known, name)?.name],
        };
        columns.retain(|engine| !out.contains(&engine.name));
    }
    if columns.is_empty() && !left_out.is_empty() {
        return Err(ConfigError(format!("{} leaves no framework to compare", left_out.join(","))));
    }
    Ok(columns)
}

/// The columns of a set, if there is one of this name.
fn set<'a>(known: &'a [Engine], name: &str) -> Option<Vec<&'a Engine>> {
    let mut engines: Vec<&Engine> = known.iter().filter(|e| e.is_plain() && !e.reference).collect();
    engines.sort_by_key(|engine| USUAL.iter().position(|name| *name == engine.name).unwrap_or(USUAL.len()));
    let references = known.iter().filter(|e| e.reference && (e.is_plain() || e.own_column) && !e.is_server());
    match name {
        ENGINES => Some(engines),
        REFERENCES => Some(references.collect()),
        STOCK => Some(references.filter(|engine| STOCK_NAMES.contains(&engine.name.as_str())).collect()),
        ALL => {
            let variants = known.iter().filter(|e| e.own_column && !e.is_plain() && !e.reference);
            Some(engines.into_iter().chain(variants).chain(references).collect())
        }
        _ => None,
    }
}

/// What people call a framework, and its columns here.
const OTHER_NAMES: [(&[&str], &str); 8] = [
    (
        &["pytorch", "torch", "libtorch", "aten"],
        "PyTorch is tch (its library, libtorch) and transformers (its models)",
    ),
    (
        &["onnxruntime", "onnx", "ort-cpu", "onnx-runtime"],
        "ONNX Runtime is ort, and genai with its own models",
    ),
    (&["llama.cpp", "llama-cpp", "llama_cpp", "ggml", "gguf"], "llama.cpp is llamacpp"),
    (
        &["huggingface", "hf", "hf-transformers"],
        "Hugging Face's are transformers, candle and candle-transformers",
    ),
    (&["candle-core", "candle_core", "candle-nn"], "candle's are candle and candle-transformers"),
    (&["tuned", "default", "ours"], "the tuned columns are the set engines"),
    (
        &["vllm", "sglang", "tgi", "triton", "ollama", "tensorrt-llm", "trt-llm"],
        "a server that runs is named by its URL, such as http://127.0.0.1:8080; llama.cpp's library is llamacpp",
    ),
    (
        &["tensorrt", "mlx", "executorch", "tflite", "litert", "mistralrs", "mistral.rs", "ctranslate2"],
        "it has no column; a worker of yours adds one (docs/how-to/add-an-engine.md)",
    ),
];

/// Whether a name is a server's.
pub fn is_url(name: &str) -> bool {
    name.contains("://") && !name.contains("git:")
}

/// The column of a name, with a version after an `@` or without.
fn named(known: &[Engine], name: &str) -> Result<Engine> {
    if is_url(name) {
        return named(known, SERVER)?.of_server(name);
    }
    if let Some((base, version)) = name.split_once('@') {
        return named(known, base)?.at(version);
    }
    known.iter().find(|engine| engine.name == name).cloned().ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|engine| engine.name.as_str()).collect();
        let lower = name.to_lowercase();
        if let Some((_, called)) = OTHER_NAMES.iter().find(|(others, _)| others.contains(&lower.as_str())) {
            return ConfigError(format!("unknown framework {name:?}: {called}"));
        }
        if let Some(near) = nearest(name, names.iter().copied().chain([ENGINES, REFERENCES, STOCK, ALL])) {
            return ConfigError(format!(
                "unknown framework {name:?}; did you mean {near}? `photofinish list frameworks` lists all names"
            ));
        }
        let sets = [ENGINES, REFERENCES, STOCK, ALL].join(", ");
        ConfigError(format!(
            "unknown framework {name:?}; `photofinish list frameworks` lists the {} names, and there are the sets {sets}; \
             a dash before a name leaves it out",
            names.len()
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Layers, Versions};

    fn known() -> Vec<Engine> {
        let engine = |name: &str, framework: &str, reference, own_column| Engine {
            name: name.into(),
            framework: framework.into(),
            reference,
            own_column,
            ..Engine::default()
        };
        vec![
            engine("candle", "candle", false, false),
            engine("candle+", "candle", false, true),
            engine("jax", "jax", true, false),
            engine("jax-nojit", "jax", true, false),
            engine("ort", "ort", false, false),
            engine("ort-off", "ort", false, false),
            engine("torch", "torch", true, false),
            engine("torch-compile", "torch", true, true),
        ]
    }

    fn names(asked: &str) -> String {
        let asked: Vec<String> =
            asked.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        match selected(&known(), &asked) {
            Ok(columns) => columns.into_iter().map(|engine| engine.name).collect::<Vec<_>>().join(","),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn sets_hold_each_framework_once_and_variants_that_are_columns_of_their_own() {
        assert_eq!(names(""), "candle,ort");
        assert_eq!(names("references"), "jax,torch,torch-compile");
        assert_eq!(names("all"), "candle,ort,candle+,jax,torch,torch-compile");
        assert_eq!(names("jax, ort-off ,engines"), "jax,ort-off,candle,ort");
    }

    #[test]
    fn a_name_given_twice_is_a_column_twice_and_a_dash_leaves_out() {
        assert_eq!(names("candle,candle"), "candle,candle");
        assert_eq!(names("candle+,candle"), "candle+,candle");
        assert_eq!(names("all,-references,-ort,-candle+"), "candle");
        assert_eq!(names("-candle"), "ort");
        assert_eq!(names("candle,-engines"), "-engines leaves no framework to compare");
    }

    #[test]
    fn a_version_is_a_column_of_its_own() {
        let mut known = known();
        known[4].versions = Some(Versions { library: Some("onnxruntime".into()), ..Versions::default() });
        known[1].versions = known[4].versions.clone();
        let asked = |name: &str| selected(&known, &[name.to_owned()]);
        let found = asked("ort@1.24.4").unwrap().remove(0);
        assert_eq!(
            (found.name.as_str(), found.version.as_deref(), found.base()),
            ("ort@1.24.4", Some("1.24.4"), "ort")
        );
        let found = asked("candle+@0.10.2").unwrap().remove(0);
        assert_eq!((found.name.as_str(), found.base()), ("candle+@0.10.2", "candle+"));
        let refusal = |name: &str| asked(name).unwrap_err().to_string();
        assert!(
            refusal("candle@0.10.2")
                .starts_with("candle@0.10.2: other versions of candle cannot be measured yet")
        );
        assert!(refusal("ort@").contains("needs a release or the path of a library"));
        assert!(refusal("orth@1.24.4").starts_with("unknown framework \"orth\""));
    }

    #[test]
    fn a_server_is_named_by_its_url_which_holds_no_secrets() {
        let (name, framework) = (SERVER.to_owned(), SERVER.to_owned());
        let server = Engine { name, framework, reference: true, ..Engine::default() };
        let known = [known(), vec![server]].concat();
        let asked = |name: &str| selected(&known, &[name.to_owned()]);
        let found = asked("http://127.0.0.1:8080/").unwrap().remove(0);
        assert_eq!((found.name.as_str(), found.base(), found.is_server()), ("127.0.0.1:8080", SERVER, true));
        assert_eq!(found.options["url"], "http://127.0.0.1:8080");
        for name in
            ["http://me:secret@127.0.0.1:8080", "http://127.0.0.1?key=secret", "ftp://[::1]", "http://"]
        {
            let refusal = asked(name).unwrap_err().to_string();
            assert!(refusal.contains("PHOTOFINISH_KEY_FILE") && !refusal.contains("secret"), "{refusal}");
        }
        assert!(asked("references").unwrap().iter().all(|engine| !engine.is_server()));
    }

    #[test]
    fn every_name_of_the_set_stock_is_a_reference_of_this_project() {
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let known = crate::engines(&Layers::single(configs)).unwrap();
        let stock = selected(&known, &[STOCK.to_owned()]).unwrap();
        let mut names: Vec<&str> = stock.iter().map(|engine| engine.name.as_str()).collect();
        let mut expected = STOCK_NAMES;
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected);
    }

    #[test]
    fn an_unknown_name_is_answered_with_names_and_sets() {
        let near = names("all,-candel");
        assert!(near.starts_with("unknown framework \"candel\"; did you mean candle?"), "{near}");
        let error = names("all,-xyz");
        assert!(error.contains("`photofinish list frameworks` lists the 8 names"), "{error}");
        assert!(
            error.ends_with("the sets engines, references, stock, all; a dash before a name leaves it out"),
            "{error}"
        );
    }
}
