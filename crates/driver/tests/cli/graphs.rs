//! ONNX files: compared by their runs and by every output, and run once by `infer`; unfit flags are refused.

use std::path::{Path, PathBuf};

use driver::measure::arrays;
use protocol::Tensor;
use serde_json::json;

use crate::common::{Installation, array, has_outcome, outcome, program, row};

/// A file that engines are held to: its inputs are `x`, `ids` and `mask`, its free dimensions `rows` and `ids`.
pub(crate) fn file(name: &str) -> String {
    program("prepare");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/graphs").join(name);
    format!("--model {}", path.with_extension("onnx").display())
}

/// The same with every dimension set.
pub(crate) fn inputs() -> String {
    format!("{} --dim rows=5,ids=4", file("inputs"))
}

fn npy(installation: &Installation, name: &str, dtype: &str, shape: &[usize], byte: u8) -> PathBuf {
    let bytes = shape.iter().product::<usize>() * bundle::Dtype::from_name(dtype).unwrap().bytes();
    let tensor =
        Tensor { name: "x".into(), dtype: dtype.into(), shape: shape.to_vec(), data: vec![byte; bytes] };
    let path = installation.path(name);
    std::fs::write(&path, arrays::npy(&tensor).unwrap()).unwrap();
    path
}

#[test]
fn each_size_of_a_dimension_is_a_case() {
    let installation = Installation::new().timed("one", &[]).timed("two", &[]);
    let line = format!("--frameworks one,two --rounds 2 --seed 7 {} --dim rows=5,ids=2,4", file("inputs"));
    let report = installation.json(0, &line);
    let cases = array(&report["plan"]["work"]["graph"]["cases"]);
    let shapes: Vec<_> = cases.iter().map(|case| case["inputs"][1]["shape"].clone()).collect();
    assert_eq!(shapes, [json!([2]), json!([4])]);
    assert_eq!(array(&report["prompts"]).len(), 2);
    assert!(array(&report["rows"]).iter().all(|row| row["state"] == "measured"), "{}", report["rows"]);
}

#[test]
fn a_file_with_weights_beside_it_is_compared() {
    let installation = Installation::new().timed("one", &[]).timed("two", &[]);
    let report =
        installation.json(0, &format!("--frameworks one,two --rounds 2 {} --dim rows=3", file("external")));
    assert!(array(&report["rows"]).iter().all(|row| row["state"] == "measured"), "{}", report["rows"]);
}

#[test]
fn an_engine_that_cannot_run_the_file_is_unsupported_with_its_reason() {
    let installation = Installation::new()
        .timed("one", &[])
        .timed("none", &[("unsupported", "there is no operator Where here")]);
    let report = installation.json(0, &format!("--frameworks one,none --rounds 2 {}", inputs()));
    has_outcome(&report, "none", "unsupported", &["there is no operator Where here"]);
    assert_eq!(row(&report, "one")["state"], "measured");
}

#[test]
fn a_worker_that_crashes_or_fails_in_a_run_loses_its_row_alone() {
    let installation = Installation::new()
        .timed("one", &[])
        .timed("crash", &[("fault", "crash"), ("fault_at", "3")])
        .timed("error", &[("fault", "error"), ("fault_at", "3")]);
    let report = installation.json(1, &format!("--frameworks one,crash,error --rounds 2 {}", inputs()));
    assert_eq!(row(&report, "one")["state"], "measured");
    for name in ["crash", "error"] {
        assert_eq!(outcome(&report, name).0, "failed", "{name}: {}", row(&report, name));
    }
}

#[test]
fn infer_writes_every_output_and_says_what_it_wrote() {
    let installation = Installation::new().engine("one", &[]);
    let infer = |output: &str, more: &str| {
        let output = installation.path(output);
        let ran = installation.run(&format!(
            "run --framework one {} --output {} {more}",
            inputs(),
            output.display()
        ));
        let ran = ran.exits(0);
        assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
        let read = ["y", "counts", "hidden"].map(|name| {
            let bytes = std::fs::read(output.join(format!("{name}.npy"))).unwrap();
            let (dtype, shape, data) = arrays::array(&bytes, false, name).unwrap();
            assert_eq!(ran.json()["outputs"][name], json!({ "shape": shape, "dtype": dtype.name() }));
            (dtype.name(), data)
        });
        assert_eq!(
            (&ran.json()["framework"], std::fs::read_dir(&output).unwrap().count()),
            (&json!("one"), 3)
        );
        read
    };
    let first = infer("out/of/one", "");
    assert_eq!(first.each_ref().map(|(dtype, _)| *dtype), ["float32", "int64", "bool"]);
    assert_eq!(infer("again", "--seed 0"), first);
    assert_ne!(infer("seed", "--seed 1")[0], first[0]);
    assert_ne!(infer("range", "--input ids=0..5")[0], first[0]);
    let file = npy(&installation, "x.npy", "float32", &[5, 8], 0x3f);
    let given = infer("file", &format!("--input x={}", file.display()));
    assert_ne!(given[0], first[0]);
    let other = npy(&installation, "other.npy", "float32", &[5, 8], 0x3e);
    assert_ne!(infer("other", &format!("--input x={}", other.display()))[0], given[0]);
}

#[test]
fn a_file_of_an_input_sets_its_dimensions() {
    let installation = Installation::new().timed("one", &[]);
    let ids = npy(&installation, "ids.npy", "int64", &[3], 0);
    let line =
        format!("--frameworks one --rounds 1 {} --dim rows=5 --input ids={}", file("inputs"), ids.display());
    let report = installation.json(0, &line);
    let inputs = array(&report["plan"]["work"]["graph"]["cases"][0]["inputs"]);
    assert_eq!(
        inputs.iter().map(|input| &input["shape"]).collect::<Vec<_>>(),
        [&json!([5, 8]), &json!([3]), &json!([3, 6])]
    );
}

/// The bytes of a field of a protobuf message that is a message or text.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

/// An ONNX file of no nodes, with an input `text` of strings and an output `y` of floats.
fn of_strings() -> Vec<u8> {
    let tensor = |name: &str, element: u8| {
        let shaped = [&[1 << 3, element][..], &field(2, &[])].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &shaped))].concat()
    };
    let graph = [field(11, &tensor("text", 8)), field(12, &tensor("y", 1))].concat();
    [&[1 << 3, 8][..], &field(7, &graph)].concat()
}

#[test]
fn what_is_no_onnx_file_or_is_of_texts_is_refused() {
    let installation = Installation::new().engine("one", &[]);
    let at = |name: &str, bytes: &[u8]| {
        let path = installation.path(name);
        std::fs::write(&path, bytes).unwrap();
        format!("--frameworks one --model {}", path.display())
    };
    let whole = std::fs::read(file("external").trim_start_matches("--model ")).unwrap();
    let alone = at("alone.onnx", &whole);
    let cut = at("cut.onnx", &whole[..whole.len() / 2]);
    let none = at("none.onnx", b"this is a text, and no ONNX file");
    let empty = at("empty.onnx", b"");
    let strings = at("strings.onnx", &of_strings());
    let missing = format!("--frameworks one --model {}", installation.path("missing.onnx").display());
    installation.refuses(&[
        (&none, &["none.onnx"]),
        (&empty, &["empty.onnx"]),
        (&cut, &["cut.onnx"]),
        (&missing, &["missing.onnx"]),
        (&strings, &["strings.onnx", "\"text\" is of strings"]),
        // Its weights are in a file that is missing.
        (&alone, &["external.data"]),
    ]);
    // The same where it is run once.
    let out = installation.path("out");
    let infer = none.replace("--frameworks", "run --framework") + " --output " + out.to_str().unwrap();
    installation.run(&infer).refused(&["none.onnx"]);
    assert!(!out.exists(), "nothing was written");
}

#[test]
fn what_does_not_fit_the_file_is_refused() {
    let installation = Installation::new().engine("one", &[]);
    let (open, set) = (file("inputs"), inputs());
    let of = |path: PathBuf| path.display().to_string();
    let wrong_shape = of(npy(&installation, "shape.npy", "float32", &[5, 9], 0));
    let wrong_rank = of(npy(&installation, "rank.npy", "float32", &[40], 0));
    let wrong_type = of(npy(&installation, "type.npy", "float64", &[5, 8], 0));
    let wrong_size = of(npy(&installation, "size.npy", "float32", &[6, 8], 0));
    let (broken, cut) = (installation.path("broken.npy"), installation.path("cut.npy"));
    std::fs::write(&broken, "no array").unwrap();
    let whole = std::fs::read(installation.path("size.npy")).unwrap();
    std::fs::write(&cut, &whole[..whole.len() - 1]).unwrap();
    let out = installation.path("out").display().to_string();
    let compare = |more: &str| format!("--frameworks one {set} {more}");
    let cases: Vec<(String, Vec<&str>)> = vec![
        (format!("--frameworks one {open}"), vec!["rows, ids", "--dim"]),
        (format!("--frameworks one {open} --dim rows=5"), vec!["ids", "--dim ids=1"]),
        (compare("--dim height=5"), vec!["\"height\"", "rows, ids"]),
        (compare("--dim rows=0"), vec!["--dim"]),
        (compare("--dim rows"), vec!["--dim"]),
        (compare("--input z=1"), vec!["\"z\"", "x, ids, mask"]),
        (compare("--input mask=0..3"), vec!["bool"]),
        (compare("--input x=3..1"), vec!["x=1..3"]),
        (compare("--input x=a.png"), vec!["x=a.png"]),
        (compare("--input x=nowhere.npy"), vec!["nowhere.npy"]),
        (compare(&format!("--input x={wrong_shape}")), vec!["5x9"]),
        (compare(&format!("--input x={wrong_rank}")), vec!["rowsx8"]),
        (compare(&format!("--input x={wrong_type}")), vec!["float32", "float64"]),
        (compare(&format!("--input x={wrong_size}")), vec!["rows=5", "6"]),
        (compare(&format!("--input x={}", broken.display())), vec!["broken.npy", ".npy file"]),
        (compare(&format!("--input x={}", cut.display())), vec!["cut.npy", "ends before"]),
        (compare("--new-tokens 4"), vec!["--new-tokens", "ONNX"]),
        (compare("--batch 4"), vec!["--batch", "ONNX"]),
        (compare("--precision bf16"), vec!["--precision"]),
        (format!("--frameworks one {open} --dim rows=5,ids={}", sizes(65)), vec!["64"]),
        (
            format!("run --framework one {open} --dim rows=5,ids=1,2 --output {out}"),
            vec!["one size", "--dim"],
        ),
        (format!("run --framework one {open} --output {out}"), vec!["rows, ids", "--dim"]),
        // The model of the installation continues texts.
        ("--frameworks one --dim batch=1".into(), vec!["--dim", "ONNX"]),
        ("--frameworks one --input x=1".into(), vec!["--input", "ONNX"]),
        (format!("run --task infer --framework one --output {out}"), vec!["ONNX"]),
    ];
    for (line, parts) in &cases {
        println!("{line}");
        installation.run(line).refused(parts);
    }
    assert!(!installation.path("out").exists(), "nothing was written");
}

#[test]
fn commands_for_models_of_texts_refuse_an_onnx_file() {
    let installation = Installation::new().engine("one", &[]);
    let (model, out) = (file("scalars"), installation.path("out").display().to_string());
    std::fs::write(installation.path("ids.json"), "[[1]]").unwrap();
    let ids = installation.path("ids.json").display().to_string();
    for command in [
        "run --framework one --tokens 1".to_owned(),
        "run --task generate --framework one --prompt text".to_owned(),
        "run --task denoise --framework one --tokens 1".to_owned(),
        "run --framework one --text a".to_owned(),
        "run --task embed --framework one --tokens 1".to_owned(),
        "run --task rerank --framework one --tokens 1".to_owned(),
        format!("run --framework one --tokens-file {ids} --output {out}"),
        format!("profile --trace --framework one --output {out}"),
        "parity --frameworks one".to_owned(),
        "worker-check one".to_owned(),
    ] {
        println!("{command}");
        installation.run(&format!("{command} {model}")).refused(&["ONNX"]);
    }
    // Studies that need texts.
    for command in
        ["sweep forward --frameworks one", "sweep embed --frameworks one", "sweep kv-cache --frameworks one"]
    {
        let ran = installation.run(&format!("{command} {model}")).exits(2);
        assert!(!ran.stderr.contains("panicked") && ran.stderr.contains("ONNX file"), "{}", ran.stderr);
    }
}

fn sizes(count: usize) -> String {
    (1..=count).map(|size| size.to_string()).collect::<Vec<_>>().join(",")
}

#[test]
fn a_request_may_be_a_sequence_of_runs_with_state() {
    let installation = Installation::new().timed("one", &[]).timed("two", &[]);
    let sequence = format!("{} --state y=x --runs 3", inputs());
    let report = installation.json(0, &format!("--frameworks one,two --rounds 2 {sequence} --audio 0.5"));
    let graph = &report["plan"]["work"]["graph"];
    assert_eq!((&graph["cases"][0]["sets"], &graph["state"][0]["input"]), (&json!(3), &json!("x")));
    assert!(array(&report["rows"]).iter().all(|row| row["state"] == "measured"), "{}", report["rows"]);
    let figure = |name: &str| {
        let metrics = array(&row(&report, "one")["metrics"]).iter();
        let mut found = metrics.filter(|metric| metric["metric"] == name);
        found.next().and_then(|metric| metric["typical"].as_f64()).unwrap()
    };
    let factor = figure("run_time") / 500.0;
    assert!((figure("real_time_factor") / factor - 1.0).abs() < 0.2, "a run is about half a second");
    let output = installation.path("out");
    let ran =
        installation.run(&format!("run --framework one {sequence} --output {}", output.display())).exits(0);
    assert_eq!(ran.json()["outputs"]["counts"]["shape"][0], 3, "{}", ran.stdout);
    for (wrong, said) in [
        ("--state nothing=x", "its outputs are y, counts, hidden"),
        ("--state counts=x", "the output is of int64, and the input takes float32"),
        ("--audio nothing=8000", "--audio names \"nothing\""),
    ] {
        let ran = installation.run(&format!("--frameworks one,two {} {wrong}", inputs())).exits(2);
        assert!(ran.stderr.contains(said), "{wrong}: {}", ran.stderr);
    }
}

#[test]
fn several_files_are_the_columns_of_one_comparison() {
    let installation = Installation::new().timed("one", &[]);
    let file = inputs();
    let first = Path::new(file.split_whitespace().nth(1).unwrap());
    let second = installation.path("smaller.onnx");
    std::fs::copy(first, &second).unwrap();
    let line = format!(
        "--frameworks one --rounds 2 --model {},{} --dim rows=5,ids=4",
        first.display(),
        second.display()
    );
    let report = installation.json(0, &line);
    let rows = array(&report["rows"]);
    assert_eq!(
        rows.iter().map(|row| row["framework"].clone()).collect::<Vec<_>>(),
        ["inputs.onnx", "smaller.onnx"]
    );
    assert_eq!(rows[1]["is_other_file"], true);
    assert_eq!(rows[1]["state"], "measured", "{}", rows[1]);
    let ran = installation.run(&line).exits(0);
    assert!(ran.stdout.contains("smaller.onnx against the first file: least cosine"), "{}", ran.stdout);
}
