//! The archive of the published run, forgeries of it, and texts as an archive has them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::*;

/// The files of the published run's archive, unpacked.
struct Forgery(tempfile::TempDir);

impl Forgery {
    fn new() -> Forgery {
        let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/published");
        let place = tempfile::tempdir().unwrap();
        let archive = place.path().join("run.tar.gz");
        write(&published, &archive, &["carol".to_owned()]).unwrap();
        let forgery = Forgery(tempfile::tempdir().unwrap());
        unpack(&archive, forgery.0.path()).unwrap();
        forgery
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// Changes a file of one value, or every line of the journal, and corrects the hashes, as a careful forger does.
    fn forge(&self, file: &str, change: impl Fn(&mut Value)) {
        let text = fs::read_to_string(self.path(file)).unwrap();
        let lines: Vec<&str> = if file == SAMPLES { text.lines().collect() } else { vec![&text] };
        let changed = |line: &&str| {
            let mut value: Value = serde_json::from_str(line).unwrap();
            change(&mut value);
            value.to_string() + "\n"
        };
        fs::write(self.path(file), lines.iter().map(changed).collect::<String>()).unwrap();
        let line = |file: &str| format!("{}  {file}\n", bundle::sha256_of(&self.path(file)).unwrap());
        let others = FILES.iter().map(|(name, _)| *name).filter(|name| *name != SUMS);
        fs::write(self.path(SUMS), others.map(line).collect::<String>()).unwrap();
    }

    /// Asserts that one fault is of this file and says all of this.
    fn refused(&self, file: &str, parts: &[&str]) {
        let faults = faults(self.0.path());
        let fits = |fault: &&String| fault.starts_with(file) && parts.iter().all(|part| fault.contains(part));
        assert!(faults.iter().any(|fault| fits(&fault)), "{file}: {parts:?} is not in {faults:#?}");
    }
}

#[test]
fn an_edited_sample_is_refused_whether_its_hash_was_corrected_or_not() {
    let forgery = Forgery::new();
    assert_eq!(faults(forgery.0.path()), [""; 0]);
    let text = fs::read_to_string(forgery.path(SAMPLES)).unwrap();
    fs::write(forgery.path(SAMPLES), text + " \n").unwrap();
    forgery.refused(SAMPLES, &["its sha256 is", "changed after it was packed", "report DIR --archive"]);
    let forgery = Forgery::new();
    // Every request of one contender takes half of its time.
    forgery.forge(SAMPLES, |fact| {
        if fact["fact"] == "block" {
            for turn in fact["turns"].as_array_mut().unwrap().iter_mut().filter(|turn| turn[0] == "tch") {
                for mark in turn[1]["sample"]["marks_ns"].as_array_mut().unwrap() {
                    *mark = json!(mark.as_u64().unwrap() / 2);
                }
            }
        }
    });
    forgery.refused(REPORT, &["rows[", "and the samples give", "--rejudge"]);
}

#[test]
fn an_edited_report_is_refused_by_the_field() {
    let forgery = Forgery::new();
    forgery.forge(REPORT, |report| report["rows"][0]["metrics"][0]["typical"] = json!(1.25));
    forgery.refused(REPORT, &["rows[0].metrics[0].typical is 1.25, and the samples give"]);
    let forgery = Forgery::new();
    forgery.forge(REPORT, |report| drop(report["comparisons"].as_array_mut().unwrap().pop()));
    forgery.refused(REPORT, &["comparisons has", "entries, and the samples give"]);
}

#[test]
fn a_foreign_hash_of_the_weights_is_refused() {
    let foreign = "0123456789abcdef".repeat(4);
    let forgery = Forgery::new();
    forgery.forge(SAMPLES, |fact| {
        if fact["fact"] == "hashed" {
            fact["sha256"] = json!(foreign);
        }
    });
    forgery.refused(SAMPLES, &[&foreign, "the bundle's manifest does not name"]);
}

#[test]
fn paths_and_names_of_people_are_refused_by_the_field_and_not_repeated() {
    let forgery = Forgery::new();
    forgery.forge(ENVIRONMENT, |environment| {
        environment["host"] = json!("carols-box");
        environment["command"] = json!(["photofinish", "--model", "/srv/carol/m.gguf"]);
    });
    forgery.refused(ENVIRONMENT, &["command[2] holds a path", "report DIR --archive"]);
    forgery.refused(ENVIRONMENT, &["host holds a path, a secret, or the name of a host"]);
    assert!(faults(forgery.0.path()).iter().all(|fault| !fault.contains("carol")));
}

#[test]
fn what_is_missing_too_long_or_leads_elsewhere_is_refused() {
    let forgery = Forgery::new();
    forgery.forge(PLAN, |plan| plan["suite"] = json!("x".repeat(300_000)));
    forgery.refused(PLAN, &["suite has 300000 characters, and at most 200000"]);
    let forgery = Forgery::new();
    let name = json!("x..");
    forgery.forge(PLAN, |plan| plan["model"] = name.clone());
    forgery.forge(REPORT, |report| report["plan"]["model"] = name.clone());
    forgery.refused(PLAN, &["is named \"x..\", which is a path"]);
    let forgery = Forgery::new();
    fs::remove_file(forgery.path(PLAN)).unwrap();
    forgery.refused(PLAN, &["it is missing"]);
}

#[test]
fn what_is_packed_can_be_unpacked_and_holds_no_name_or_path() {
    let directory = tempfile::tempdir().unwrap();
    let [run, out] = ["run", "out"].map(|name| directory.path().join(name));
    std::fs::create_dir_all(&run).unwrap();
    std::fs::create_dir_all(&out).unwrap();
    let lines = "{\"fact\": \"a\", \"file\": \"/srv/x/y.bin\"}\n{\"fact\": \"b\", \"n\": 1.5}\n{\"cut";
    std::fs::write(run.join(SAMPLES), lines).unwrap();
    let environment = "{\n \"host\": \"carols-box\", \"kernel\": \"6.1-carol\", \"cpu\": \"EPYC\"\n}";
    std::fs::write(run.join("environment.json"), environment).unwrap();
    std::fs::write(run.join("report.html"), "carol").unwrap();
    let archive = directory.path().join("run.tar.gz");
    write(&run, &archive, &["carol".to_owned()]).unwrap();
    unpack(&archive, &out).unwrap();
    let read = |name: &str| std::fs::read_to_string(out.join(name));
    let samples = read(SAMPLES).unwrap();
    assert_eq!(samples.lines().count(), 2, "{samples}");
    assert!(samples.contains("(path)") && samples.contains("1.5") && !samples.contains("srv"), "{samples}");
    let environment: Value = serde_json::from_str(&read("environment.json").unwrap()).unwrap();
    assert_eq!(environment, serde_json::json!({"cpu": "EPYC", "host": "(name)", "kernel": null}));
    assert!(read("report.html").is_err());
    let sums = read(SUMS).unwrap();
    assert_eq!(sums.lines().count(), 2, "{sums}");
    assert!(sums.contains(&bundle::sha256_of(&out.join(SAMPLES)).unwrap()), "{sums}");
}

/// An archive of one member, whose name is not checked while it is written.
fn archive_of(directory: &Path, name: &str, kind: tar::EntryType, bytes: &[u8]) -> PathBuf {
    let path = directory.join("forged.tar.gz");
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(bytes.len() as u64);
    header.set_cksum();
    let mut tar = tar::Builder::new(GzEncoder::new(File::create(&path).unwrap(), Compression::fast()));
    tar.append(&header, bytes).unwrap();
    tar.into_inner().unwrap().finish().unwrap();
    path
}

#[test]
fn an_archive_writes_nothing_but_the_files_of_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let file = tar::EntryType::Regular;
    for name in
        ["run/../../x.json", "/tmp/plan.json", "run/notes.txt", "plan.json", "run/", "other/plan.json"]
    {
        let why = unpack(&archive_of(directory.path(), name, file, b"{}"), &out).unwrap_err().to_string();
        assert!(why.contains(name) && why.contains("no archive of a run has"), "{why}");
    }
    let link = archive_of(directory.path(), "run/plan.json", tar::EntryType::Symlink, b"");
    assert!(unpack(&link, &out).unwrap_err().to_string().contains("run/plan.json"));
    let large = vec![b' '; 30_000_000];
    let large = archive_of(directory.path(), "run/samples.jsonl", file, &large);
    let why = unpack(&large, &out).unwrap_err().to_string();
    assert!(why.contains("samples.jsonl: it has 30.0 MB, and at most 20 MB"), "{why}");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "nothing beside it");
}

#[test]
fn paths_and_names_are_taken_out_and_units_are_not() {
    let names = ["carols-box", "carol"].map(str::to_owned);
    let said = |text: &str| without_names(&without_paths(text), &names);
    assert_eq!(said("cannot read /srv/people/carol/models/x: gone"), "cannot read (path): gone");
    assert_eq!(said("/srv/people/carol/my models/x"), "(path)");
    assert_eq!(said("2000 GB/s at 1/2, tok/s"), "2000 GB/s at 1/2, tok/s");
    assert_eq!(said("--model=~/models/a --configs ../mine"), "--model=(path) --configs (path)");
    assert_eq!(said("carols-box, by carol"), "(name), by (name)");
}

#[test]
fn what_is_left_is_found_by_its_field_and_what_was_cleaned_is_not() {
    let value = serde_json::json!({
        "host": "carols-box", "kernel": "6.1-carol", "rows": [{"why": "no /srv/carol/x"}], "a:/b": 1, "n": "tok/s"
    });
    assert_eq!(personal(&value), ["a:/b", "host", "kernel", "rows[0].why"]);
    assert_eq!(personal(&without(value, &[])), [""; 0]);
    let value = json!({
        "env": {"HF_TOKEN": "swordfish"}, "a@git:https://a:swordfish@b#c": "of https://a:swordfish@b"
    });
    assert_eq!(personal(&value), ["a@git:https://a:swordfish@b#c", "env"]);
    assert!(!without(value.clone(), &[]).to_string().contains("swordfish"));
    assert_eq!(personal(&without(value, &[])), [""; 0]);
}

#[test]
fn figures_and_verdicts_are_compared_and_sentences_are_not() {
    let judged = json!({"rows": [{"state": "struck", "typical": 2.0, "reasons": ["a"]}], "n": null});
    let found = |submitted: Value| difference(&submitted, &judged, "").unwrap_or_default();
    assert_eq!(found(json!({"rows": [{"state": "struck", "typical": 2.000_000_000_1, "reasons": []}]})), "");
    assert_eq!(found(json!({"rows": [], "n": null})), "rows has 0 entries, and the samples give 1");
    assert_eq!(
        found(json!({"rows": [{"typical": 2.1}]})),
        "rows[0].typical is 2.1, and the samples give 2.0"
    );
    assert_eq!(
        found(json!({"rows": [{"state": "measured"}]})),
        "rows[0].state is \"measured\", and the samples give \"struck\""
    );
    assert_eq!(found(json!({"made_up": [1]})), "made_up is [1], and the samples give not there");
    assert_eq!(found(json!({"left_out": [], "n": null})), "");
}

/// A key of OpenSSH without a passphrase.
#[expect(clippy::disallowed_methods, reason = "OpenSSH's own program makes keys")]
fn key(directory: &Path, name: &str) -> PathBuf {
    let key = directory.join(name);
    let mut command = std::process::Command::new("ssh-keygen");
    let made = command.args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]).arg(&key).output();
    let made = made.expect("ssh-keygen makes the keys (Debian: apt-get install openssh-client)");
    assert!(made.status.success(), "{made:?}");
    key
}

#[test]
fn a_signature_is_of_the_archive_as_it_is_and_of_a_key_that_may_sign() {
    let place = tempfile::tempdir().unwrap();
    let own = key(place.path(), "own");
    let other = key(place.path(), "other").with_extension("pub");
    let public = own.with_extension("pub");
    let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/published");
    let run = place.path().join("run");
    fs::create_dir(&run).unwrap();
    for (name, _) in FILES.iter().filter(|(name, _)| *name != SUMS) {
        fs::copy(published.join(name), run.join(name)).unwrap();
    }
    let archive = pack(&run).unwrap();
    let refused = |signers: &Path| {
        let why = signature::verify(&archive, signers).unwrap_err();
        (why.exit_code(), why.to_string())
    };
    let (code, why) = refused(&public);
    assert!(code == 2 && why.contains("has no signature"), "{why}");
    assert_eq!(signature::sign(&archive, &own).unwrap(), place.path().join("run.tar.gz.sig"));
    assert_eq!(signature::verify(&archive, &public).unwrap(), 0);
    let (code, why) = refused(&other);
    assert!(code == 1 && why.contains("no key of"), "{why}");
    let both = place.path().join("both.keys");
    fs::write(&both, [fs::read(&other).unwrap(), fs::read(&public).unwrap()].concat()).unwrap();
    assert_eq!(signature::verify(&archive, &both).unwrap(), 0);
    // One sample less, with correct sums.
    let samples = fs::read_to_string(run.join(SAMPLES)).unwrap();
    fs::write(run.join(SAMPLES), samples.lines().skip(1).map(|line| format!("{line}\n")).collect::<String>())
        .unwrap();
    pack(&run).unwrap();
    let (code, why) = refused(&public);
    assert!(code == 1 && why.contains("changed after it was signed"), "{why}");
    let why = signature::sign(&archive, &place.path().join("none")).unwrap_err().to_string();
    assert!(why.contains("cannot sign"), "{why}");
}
