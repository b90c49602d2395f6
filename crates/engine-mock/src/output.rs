//! Faults of the protocol: output that a broken worker might send instead of events, or between them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bundle::{GraphInput, GraphOutput, Size};
use gpu::simulated::Player;
use serde_json::Value;
use worker::engine::{
    Allocated, Bench, Bundle, Device, Dtype, EngineError, Graph, Precision, Profile, ProfileClock,
    ProfileEvent, Result, Run, Settings, Tensor,
};

use crate::script::{Fault, Options, Part, Script, unix_time};
use crate::{Mock, mix};

/// Wraps a worker's output to apply the faults of its job.
pub fn through(job: &str, output: Box<dyn Write>) -> Box<dyn Write> {
    let job = serde_json::from_str::<Value>(job).unwrap_or_default();
    let options = job.pointer("/settings/options").cloned().unwrap_or_default();
    let options = serde_json::from_value(options).unwrap_or_default();
    // The load refuses options that are wrong.
    let Ok(options) = Options::read(&options) else { return output };
    let changes = Changes {
        fault: options.fault,
        leave_out: options.leave_out,
        say: options.say.as_deref().map(readings).unwrap_or_default(),
        cases: job.pointer("/task/work/cases").cloned().unwrap_or_default(),
    };
    if changes.is_none() { output } else { Box::new(Changed { changes, output, lines: 0 }) }
}

struct Changes {
    /// Happens at the second event or, if it concerns a certain one, with that.
    fault: Option<Fault>,
    leave_out: Option<String>,
    /// Readings that replace the true ones: JSON pointers that begin with the event, and the values.
    say: Vec<(String, Value)>,
    /// Those of the job, with the tokens that are fed.
    cases: Value,
}

impl Changes {
    fn is_none(&self) -> bool {
        self.fault.is_none() && self.leave_out.is_none() && self.say.is_empty()
    }
}

/// `usage/peak_bytes=0;started/runtime_ns=1`, as pointers and values. Values that are not JSON are left out.
fn readings(text: &str) -> Vec<(String, Value)> {
    let parts = text.split(';').filter_map(|part| part.split_once('='));
    parts.filter_map(|(place, value)| Some((place.to_owned(), serde_json::from_str(value).ok()?))).collect()
}

struct Changed {
    changes: Changes,
    output: Box<dyn Write>,
    lines: usize,
}

impl Changed {
    /// The event as it is sent; `None` if it is left out.
    fn told(&self, line: &[u8]) -> Option<Vec<u8>> {
        let Changes { leave_out, say, fault, cases } = &self.changes;
        let echoes = *fault == Some(Fault::Echo);
        if leave_out.is_none() && say.is_empty() && !echoes {
            return Some(line.to_vec());
        }
        let mut event: Value = serde_json::from_slice(line).ok()?;
        let kind = event["event"].as_str().unwrap_or_default().to_owned();
        if leave_out.as_deref() == Some(&kind) {
            return None;
        }
        if echoes && kind == "sample" {
            let case = event["case"].as_u64().unwrap_or_default() as usize;
            let output = &mut event["output"];
            let of_steps = output.get("steps").is_some();
            let tokens = if of_steps { &mut output["steps"]["tokens"] } else { &mut output["tokens"] };
            *tokens = cases[case]["trace"].clone();
        }
        for (place, value) in say {
            let Some(pointer) = place.strip_prefix(&kind).filter(|rest| rest.starts_with('/')) else {
                continue;
            };
            if let Some(reading) = event.pointer_mut(pointer) {
                reading.clone_from(value);
            }
        }
        Some(format!("{event}\n").into_bytes())
    }
}

impl Write for Changed {
    /// The worker writes one event, and with it one line, at a time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines += 1;
        let is_of = |kind: &str| line.starts_with(format!("{{\"event\":\"{kind}\"").as_bytes());
        match self.changes.fault {
            Some(Fault::Version) if self.lines == 1 => {
                let text = String::from_utf8_lossy(line).replacen("\"protocol\":", "\"protocol\":9", 1);
                self.output.write_all(text.as_bytes())?;
                return Ok(line.len());
            }
            Some(Fault::Twice) if is_of("sample") => self.output.write_all(line)?,
            Some(fault @ (Fault::ParityPipe | Fault::ParityLink | Fault::ParityHuge)) if is_of("parity") => {
                replace_parity_file(fault, line)?;
            }
            Some(Fault::Garbage) if self.lines == 3 => {
                self.output.write_all(b"{\"event\": \"load\xff\n")?;
            }
            Some(Fault::Flood) if self.lines == 3 => loop {
                self.output.write_all(&[b'x'; 4096])?;
            },
            Some(fault @ (Fault::Orphan | Fault::Detach | Fault::Vanish | Fault::Leave))
                if self.lines == 3 =>
            {
                if fault != Fault::Leave {
                    leave_child(fault)?;
                }
                if matches!(fault, Fault::Orphan | Fault::Leave) {
                    self.output.flush()?;
                    std::process::exit(0);
                }
            }
            _ => {}
        }
        if let Some(told) = self.told(line) {
            self.output.write_all(&told)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

// Simulated runs of an ONNX file: its operators are not read.

const NUMBERS: usize = 4;

const BELOW: u64 = 100;

impl Run for Mock {
    fn graph(&self) -> &Graph {
        self.config.graph.as_ref().expect("this capability is given for ONNX files alone")
    }

    fn feed(&mut self, inputs: &[Tensor]) -> Result<()> {
        let rows = rows(Run::graph(self), inputs);
        let of_row = |row: usize| {
            inputs.iter().fold(0xcbf2_9ce4_8422_2325, |state, input| {
                let within = &input.shape[usize::from(rows.is_some())..];
                let shape = within.iter().fold(state, |state, &size| mix(state ^ size as u64));
                let bytes = input.data.len() / rows.unwrap_or(1);
                let data = &input.data[row * bytes..(row + 1) * bytes];
                data.iter().fold(shape, |state, &byte| mix(state ^ u64::from(byte)))
            })
        };
        self.fed = (0..rows.unwrap_or(1)).map(of_row).collect();
        self.has_rows = rows.is_some();
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.ran = None;
        self.appends += 1;
        self.misbehave()?;
        let step = self.script.step_time(self.script.token_ms, self.appends) + self.compiling(false);
        self.busy.set(true);
        self.script.wait(Part::Prompt, step);
        self.busy.set(self.script.busy_waiting);
        self.ran = Some(self.fed.clone());
        Ok(())
    }

    fn outputs(&mut self) -> Result<Vec<Tensor>> {
        let states = self.ran.as_ref().ok_or_else(|| EngineError::Input("outputs before a run".into()))?;
        let perturb = self.script.perturb;
        let shape = if self.has_rows { vec![states.len(), NUMBERS] } else { vec![NUMBERS] };
        let output = |(place, output): (usize, &GraphOutput)| {
            let hash = |state: u64, index: usize| mix(state ^ ((place << 32 | index) as u64 + 1));
            let of_row = |&state: &u64| {
                (0..NUMBERS).flat_map(move |index| number(output.dtype, hash(state, index), index, perturb))
            };
            Tensor {
                name: output.name.clone(),
                dtype: output.dtype,
                shape: shape.clone(),
                data: states.iter().flat_map(of_row).collect(),
            }
        };
        Ok(Run::graph(self).outputs.iter().enumerate().map(output).collect())
    }
}

/// Number of rows that are computed separately, if the first dimension of all inputs is the same free one.
fn rows(graph: &Graph, inputs: &[Tensor]) -> Option<usize> {
    let free = |input: &GraphInput| match input.shape.as_ref()?.first()? {
        Size::Free(name) => Some(name.clone()),
        Size::Fixed(_) => None,
    };
    let mut names = graph.inputs.iter().map(free);
    let first = names.next()??;
    let is_common = names.all(|name| name.as_ref() == Some(&first));
    inputs.first()?.shape.first().copied().filter(|&rows| is_common && rows > 0)
}

/// The bytes of a number that follows from a hash: a float from -1 to 1, or a whole number from 0.
fn number(dtype: Dtype, hash: u64, index: usize, perturb: f32) -> Vec<u8> {
    let float = (hash >> 40) as f32 / (1 << 23) as f32 - 1.0 + if index % 2 == 1 { perturb } else { 0.0 };
    let whole = (hash % BELOW) ^ u64::from(index == 0 && perturb != 0.0);
    match dtype {
        Dtype::Float16 => half::f16::from_f32(float).to_le_bytes().to_vec(),
        Dtype::Float32 => float.to_le_bytes().to_vec(),
        Dtype::Float64 => f64::from(float).to_le_bytes().to_vec(),
        Dtype::Bool => vec![(whole & 1) as u8],
        _ => whole.to_le_bytes()[..dtype.bytes()].to_vec(),
    }
}

// Harm that a hostile worker does to the machine around it: children that outlive it, files that are none.

/// Starts a child that lives for an hour. An orphan holds the worker's stdout and stderr; one that is detached is in a
/// session of its own and holds neither; one that vanishes has not even the worker's environment, and another parent.
pub(crate) fn leave_child(fault: Fault) -> io::Result<()> {
    let words: &[&str] = match fault {
        Fault::Vanish => &["env", "-i", "setsid", "--fork", "sleep", "3600"],
        Fault::Detach => &["setsid", "sleep", "3600"],
        _ => &["sleep", "3600"],
    };
    #[expect(clippy::disallowed_methods, reason = "a child that its worker does not wait for")]
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    match fault {
        Fault::Orphan => drop(command.stdout(protocol_pipe()?)),
        _ => drop(command.stdout(Stdio::null()).stderr(Stdio::null())),
    }
    let mut child = command.spawn()?;
    if fault == Fault::Vanish {
        child.wait()?;
    }
    Ok(())
}

/// The pipe to the driver once more. The worker's own stdout was pointed at stderr.
fn protocol_pipe() -> io::Result<File> {
    let target = |path: &Path| std::fs::read_link(path).ok();
    let known = ["/proc/self/fd/0", "/proc/self/fd/2"].map(|path| target(Path::new(path)));
    let is_it = |path: &PathBuf| {
        let own = target(path);
        own.as_ref().is_some_and(|to| to.to_string_lossy().starts_with("pipe:")) && !known.contains(&own)
    };
    let mut files = std::fs::read_dir("/proc/self/fd")?.flatten().map(|entry| entry.path());
    let pipe = files.find(is_it);
    File::options().write(true).open(pipe.ok_or(io::ErrorKind::NotFound)?)
}

/// Maps a copy of the weights as engines map them, and reads it after its file was cut off: the system ends a process for
/// that, and no program can turn it into an error.
pub(crate) fn read_what_is_cut_off(bundle: &Bundle, precision: Precision) -> Result<()> {
    let copy = std::env::temp_dir().join(format!("photofinish-mock-{}", std::process::id()));
    let failed = |error: io::Error| EngineError::Framework(format!("{}: {error}", copy.display()));
    std::fs::copy(bundle.weights_path(precision)?, &copy).map_err(failed)?;
    let stored = bundle.config().stored(precision)?;
    let weights = bundle::Weights::map(&copy, precision, &stored)?;
    let file = File::options().write(true).open(&copy).map_err(failed)?;
    // The process dies below, so that it cannot be removed afterwards.
    std::fs::remove_file(&copy).map_err(failed)?;
    file.set_len(0).map_err(failed)?;
    let tensor = weights.tensor(&stored[0].name)?;
    std::hint::black_box(tensor.bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>());
    Ok(())
}

/// Replaces the file that a parity event names by something else.
pub(crate) fn replace_parity_file(fault: Fault, line: &[u8]) -> io::Result<()> {
    let event: serde_json::Value = serde_json::from_slice(line)?;
    let file = Path::new(event["file"].as_str().unwrap_or_default());
    std::fs::remove_file(file)?;
    match fault {
        Fault::ParityLink => {
            #[cfg(unix)]
            std::os::unix::fs::symlink("/dev/zero", file)?;
            Ok(())
        }
        // A hole of a terabyte, which needs no room on the disk.
        Fault::ParityHuge => File::create(file)?.set_len(1 << 40),
        _ => {
            #[expect(clippy::disallowed_methods, reason = "a named pipe in place of a file")]
            let made = Command::new("mkfifo").arg(file).status()?;
            if made.success() { Ok(()) } else { Err(io::ErrorKind::Other.into()) }
        }
    }
}

// A profiler for the mock: an event for each call of `append`, and within it one for each part of the model, all of
// equal length. They are read from the time since 1970, as those of most frameworks are.

/// The events noted so far; `None` while the profiler is off.
#[derive(Default)]
pub(crate) struct Profiler(Option<Vec<ProfileEvent>>);

impl Profiler {
    pub(crate) fn begin(&mut self, script: &Script) -> Result<()> {
        if !script.profiler {
            return Err(EngineError::Unsupported(
                "The mock has no profiler unless its script says so.".into(),
            ));
        }
        self.0 = Some(Vec::new());
        Ok(())
    }

    /// The time now, if the profiler is on.
    pub(crate) fn now(&self) -> Option<u64> {
        self.0.as_ref().map(|_| unix_time().as_nanos() as u64)
    }

    /// Notes a call of `append` that began at `start_ns` and ends now.
    pub(crate) fn note(&mut self, start_ns: Option<u64>, layers: usize, positions: usize) {
        let (Some(start_ns), Some(end_ns)) = (start_ns, self.now()) else { return };
        let layer = |layer| ["attention", "mlp"].map(|part| format!("layer {layer} {part}"));
        let parts: Vec<String> = std::iter::once("embedding".to_owned())
            .chain((0..layers).flat_map(layer))
            .chain(std::iter::once("head".to_owned()))
            .collect();
        let event = |name: &str, part, start_ns, duration_ns| ProfileEvent {
            name: name.into(),
            part,
            thread: "main".into(),
            start_ns,
            duration_ns,
            details: BTreeMap::from([("positions".into(), positions.to_string().into())]),
        };
        let each = (end_ns - start_ns) / parts.len() as u64;
        let Some(events) = &mut self.0 else { return };
        events.push(event("append", None, start_ns, end_ns - start_ns));
        for (index, part) in parts.into_iter().enumerate() {
            events.push(event("wait", Some(part.into()), start_ns + index as u64 * each, each));
        }
    }

    pub(crate) fn end(&mut self) -> Result<Profile> {
        let events = self.0.take();
        let events = events.ok_or_else(|| EngineError::Input("end_profile before begin_profile".into()))?;
        Ok(Profile {
            profiler: "the mock's profiler".into(),
            clock: ProfileClock::Realtime,
            events,
            notes: vec!["The mock's parts are all said to take equally long.".into()],
        })
    }
}

// A simulated GPU: work is launched, and done some time later.

pub(crate) struct PlayedGpu {
    allocated: Option<Allocated>,
    synchronises: bool,
    /// Work that was launched and not waited for.
    pending: Duration,
    /// Its entry in the list of the GPU's processes.
    _listed: Option<Player>,
}

impl PlayedGpu {
    /// `None` for a model on the CPU.
    pub(crate) fn open(script: &Script, settings: &Settings) -> Result<Option<PlayedGpu>> {
        if settings.device() == Device::Cpu {
            return Ok(None);
        }
        if script.gpu_bandwidth.is_none() {
            return Err(EngineError::Unsupported("the mock computes nothing on a GPU".into()));
        }
        // The GPUs that the worker reads. Without them no process list exists.
        let gpus = gpu::simulated::named();
        let listed = gpus.map(|gpus| gpu::simulated::play(&gpus, script.gpu_memory_bytes()));
        let listed = listed.transpose().map_err(|error| EngineError::Framework(error.to_string()))?;
        let (allocated, synchronises) = (script.gpu_allocated(), script.synchronises.unwrap_or(true));
        Ok(Some(PlayedGpu { allocated, synchronises, pending: Duration::ZERO, _listed: listed }))
    }

    /// Launches work, and returns how long to wait for all of it; zero if the script does not wait.
    pub(crate) fn launch(&mut self, work: Duration) -> Duration {
        self.pending += work;
        if self.synchronises { std::mem::take(&mut self.pending) } else { Duration::ZERO }
    }

    pub(crate) fn allocated(&self) -> Option<Allocated> {
        self.allocated
    }

    pub(crate) fn synchronises(&self) -> bool {
        self.synchronises
    }
}

/// Buffers on a simulated GPU.
pub(crate) struct PlayedBench {
    script: Script,
    /// In GB/s.
    bandwidth: f64,
    device: Device,
    precision: Precision,
    bytes: u64,
}

const SIDE: u64 = 4096;

impl PlayedBench {
    pub(crate) fn new(settings: &Settings, bytes: usize) -> Result<PlayedBench> {
        let script = Script::read(settings)?;
        let no_gpu = || EngineError::Unsupported("the mock plays no GPU".into());
        let bandwidth = script.gpu_bandwidth.ok_or_else(no_gpu)?;
        script.begin();
        let (device, precision) = (settings.device(), settings.precision);
        Ok(PlayedBench { script, bandwidth, device, precision, bytes: bytes as u64 })
    }

    /// Does so much work at this many units a nanosecond.
    fn work(&self, units: u64, speed: f64) -> u64 {
        self.script.wait(Part::Step, Duration::from_secs_f64(units as f64 / speed / 1e9));
        units
    }
}

impl Bench for PlayedBench {
    fn device(&self) -> Device {
        self.device
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn copies(&mut self, times: usize) -> Result<u64> {
        Ok(self.work(2 * self.bytes * times as u64, self.bandwidth))
    }

    fn products(&mut self, times: usize) -> Result<u64> {
        Ok(self.work(2 * SIDE.pow(3) * times as u64, self.script.gpu_gflops.unwrap_or(100_000.0)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bundle::Bundle;
    use worker::engine::{InferenceEngine, Precision, Settings};

    use super::*;

    /// A mock with a file of two inputs and an output of each type.
    fn mock(options: &[(&str, &str)]) -> Mock {
        let input =
            |name: &str, dtype| GraphInput { name: name.into(), dtype, shape: Some(vec![Size::Fixed(2)]) };
        let output = |dtype: Dtype| GraphOutput { name: dtype.name().into(), dtype };
        let graph = Graph {
            opset: 17,
            inputs: vec![input("x", Dtype::Float32), input("on", Dtype::Bool)],
            outputs: Dtype::ALL.map(output).into(),
            bytes: 1,
            stored: None,
            operators: BTreeMap::new(),
        };
        let directory = tempfile::tempdir().unwrap();
        let manifest = r#"{"format": 1, "name": "nothing", "source": {"kind": "test", "sha256": {}}, "files":
            {"graph.onnx": {"sha256": "", "bytes": 1, "derived": "for a test"}}}"#;
        let config = graph.config_json().to_string();
        for (name, text) in
            [("config.json", config.as_str()), ("manifest.json", manifest), ("graph.onnx", "x")]
        {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let options = options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let settings = Settings { options, ..Settings::on_cpu(Precision::F32, 1) };
        Mock::load(&Bundle::open(directory.path()).unwrap(), &settings).unwrap()
    }

    fn outputs(mock: &mut Mock, data: &[u8; 10]) -> Vec<Tensor> {
        let tensor = |name: &str, dtype, data: &[u8]| Tensor {
            name: name.into(),
            dtype,
            shape: vec![2],
            data: data.to_vec(),
        };
        mock.feed(&[tensor("x", Dtype::Float32, &data[..8]), tensor("on", Dtype::Bool, &data[8..])]).unwrap();
        mock.run().unwrap();
        mock.outputs().unwrap()
    }

    #[test]
    fn outputs_follow_from_every_byte_of_the_inputs() {
        let mut mock = mock(&[]);
        let first = outputs(&mut mock, &[0; 10]);
        assert_eq!(first.iter().map(|tensor| tensor.dtype).collect::<Vec<_>>(), Dtype::ALL);
        assert!(
            first.iter().all(|tensor| tensor.shape == [4] && tensor.data.len() == 4 * tensor.dtype.bytes())
        );
        assert_eq!(outputs(&mut mock, &[0; 10]), first);
        for place in 0..10 {
            let mut data = [0; 10];
            data[place] = 1;
            assert_ne!(outputs(&mut mock, &data), first, "byte {place}");
        }
    }

    #[test]
    fn the_script_s_wrong_answers_and_faults_are_those_of_a_run() {
        let right = outputs(&mut mock(&[]), &[7; 10]);
        let wrong = outputs(&mut mock(&[("perturb", "0.5")]), &[7; 10]);
        assert!(right.iter().zip(&wrong).all(|(right, wrong)| right.data != wrong.data), "each is wrong");
        let mut failing = mock(&[("fault", "error"), ("fault_at", "2")]);
        outputs(&mut failing, &[7; 10]);
        assert!(matches!(failing.run(), Err(EngineError::Framework(_))));
        assert!(failing.outputs().is_err(), "a run that failed gave nothing");
    }

    #[test]
    fn a_number_has_the_bytes_of_its_type() {
        for dtype in Dtype::ALL {
            assert_eq!(number(dtype, 0x1234_5678_9abc_def0, 1, 0.0).len(), dtype.bytes(), "{dtype}");
        }
        assert_eq!(number(Dtype::Int64, 205, 1, 0.0), 5u64.to_le_bytes());
        assert_eq!(number(Dtype::Uint8, 205, 0, 0.5), [4]);
        assert!(number(Dtype::Bool, 3, 0, 0.0) != number(Dtype::Bool, 3, 0, 1.0));
        let float =
            |perturb| f64::from_le_bytes(number(Dtype::Float64, 7 << 50, 1, perturb).try_into().unwrap());
        assert_eq!(float(0.5), float(0.0) + 0.5);
    }
}
