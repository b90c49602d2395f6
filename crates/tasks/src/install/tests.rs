use super::*;

/// A made-up checkout with two binaries, and the root of an installation.
struct Scene {
    directory: tempfile::TempDir,
    workspace: Workspace,
}

const BINARIES: [&str; 3] = ["engine-mock", "prepare", "reference-fast"];

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| directory.path().join(path);
        let workspace = Workspace {
            root: at("checkout"),
            binaries: at("built"),
            cache: at("cache"),
            target: None,
            variables: Vec::new(),
            user_configs: None,
        };
        let scene = Scene { directory, workspace };
        for file in [
            "built/engine-mock",
            "built/engine-other",
            "built/photofinish",
            "built/prepare",
            "built/reference-fast",
            "checkout/.cargo/config.toml",
            "checkout/Cargo.lock",
            "checkout/LICENSE-APACHE",
            "checkout/LICENSE-MIT",
            "checkout/configs/engines/.mock.toml.swp",
            "checkout/configs/native.toml",
            "checkout/configs/texts/prose.txt",
            "checkout/docs/how-to/install.md",
            "checkout/patches/zip/Cargo.toml",
            "checkout/references/Cargo.lock",
            "checkout/references/python/reference_worker/__pycache__/serve.pyc",
            "checkout/references/python/reference_worker/serve.py",
            "checkout/references/python/requirements/genai.txt",
            "checkout/references/python/tests/test_serve.py",
            "checkout/references/python/worker",
        ] {
            scene.write(file, "");
        }
        for (framework, worker) in [("mock", "engine-mock"), ("fast", "reference-fast")] {
            let engine = format!(
                "framework = \"{framework}\"\nworker = \"{worker}\"\nsummary = \"\"\nversions.crates = [\"fast\"]\n"
            );
            scene.write(&format!("checkout/configs/engines/{framework}.toml"), &engine);
        }
        let workspace = |members: &str, dependency: &str| {
            format!("[workspace]\nmembers = [\"{members}\"]\n[workspace.dependencies]\n{dependency}\n")
        };
        scene.write("checkout/Cargo.toml", &workspace("crates/*", "engine = { path = \"crates/engine\" }"));
        let beside = workspace("fast", "beside = { path = \"../crates/beside\" }");
        scene.write("checkout/references/Cargo.toml", &beside);
        let tested =
            "engine.workspace = true\n[dev-dependencies]\nconformance = { path = \"../conformance\" }";
        for (directory, package, dependencies) in [
            ("crates/beside", "beside", ""),
            ("crates/conformance", "conformance", ""),
            ("crates/engine", "engine", ""),
            ("crates/engine-mock", "engine-mock", tested),
            ("references/fast", "reference-fast", "beside.workspace = true"),
        ] {
            let manifest = format!("[package]\nname = \"{package}\"\n[dependencies]\n{dependencies}\n");
            scene.write(&format!("checkout/{directory}/Cargo.toml"), &manifest);
            scene.write(&format!("checkout/{directory}/src/lib.rs"), "");
            scene.write(&format!("checkout/{directory}/tests/runs.rs"), "");
        }
        scene
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn write(&self, file: &str, text: &str) {
        fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
        fs::write(self.path(file), text).unwrap();
    }

    fn install(&self) -> Result<()> {
        put(&self.workspace, &BINARIES.map(str::to_owned), &record(), &Target::below(&self.path("root")))
    }

    /// Files below the root, in order.
    fn installed(&self) -> Vec<String> {
        fn walk(directory: &Path, files: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { walk(&path, files) } else { files.push(path) }
            }
        }
        let (root, mut files) = (self.path("root"), Vec::new());
        walk(&root, &mut files);
        files.sort();
        let names = files.iter().map(|file| file.strip_prefix(&root).unwrap().display().to_string());
        names.collect()
    }
}

fn record() -> BuildRecord {
    BuildRecord { version: "1.0".into(), git_commit: Some("ab".into()), ..BuildRecord::default() }
}

const INSTALLED: [&str; 29] = [
    "bin/photofinish",
    "share/photofinish/LICENSE-APACHE",
    "share/photofinish/LICENSE-MIT",
    "share/photofinish/build.json",
    "share/photofinish/configs/engines/fast.toml",
    "share/photofinish/configs/engines/mock.toml",
    "share/photofinish/configs/native.toml",
    "share/photofinish/configs/texts/prose.txt",
    "share/photofinish/docs/how-to/install.md",
    "share/photofinish/references/python/reference_worker/serve.py",
    "share/photofinish/references/python/requirements/genai.txt",
    "share/photofinish/references/python/worker",
    "share/photofinish/sources/.cargo/config.toml",
    "share/photofinish/sources/Cargo.lock",
    "share/photofinish/sources/Cargo.toml",
    "share/photofinish/sources/crates/beside/Cargo.toml",
    "share/photofinish/sources/crates/beside/src/lib.rs",
    "share/photofinish/sources/crates/engine/Cargo.toml",
    "share/photofinish/sources/crates/engine/src/lib.rs",
    "share/photofinish/sources/crates/engine-mock/Cargo.toml",
    "share/photofinish/sources/crates/engine-mock/src/lib.rs",
    "share/photofinish/sources/patches/zip/Cargo.toml",
    "share/photofinish/sources/references/Cargo.lock",
    "share/photofinish/sources/references/Cargo.toml",
    "share/photofinish/sources/references/fast/Cargo.toml",
    "share/photofinish/sources/references/fast/src/lib.rs",
    "share/photofinish/workers/engine-mock",
    "share/photofinish/workers/prepare",
    "share/photofinish/workers/reference-fast",
];

#[test]
fn what_is_installed_is_all_that_the_program_looks_for() {
    let scene = Scene::new();
    let program = scene.path("root/bin/photofinish");
    assert_eq!(Layout::beside(&program), None);
    scene.install().unwrap();
    assert_eq!(scene.installed(), INSTALLED);
    let found = Layout::beside(&program).expect("an installation");
    assert!(found.workers().join("engine-mock").is_file());
    assert_eq!(found.build(), Some(record()));
}

#[cfg(unix)]
#[test]
fn programs_stay_executable() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    for file in ["built/photofinish", "built/prepare", "checkout/references/python/worker"] {
        fs::set_permissions(scene.path(file), fs::Permissions::from_mode(0o755)).unwrap();
    }
    scene.install().unwrap();
    for file in
        ["bin/photofinish", "share/photofinish/workers/prepare", "share/photofinish/references/python/worker"]
    {
        let mode = fs::metadata(scene.path("root").join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{file}");
    }
}

#[test]
fn installing_again_leaves_nothing_of_before() {
    let scene = Scene::new();
    scene.install().unwrap();
    scene.write("root/share/photofinish/configs/engines/gone.toml", "");
    scene.install().unwrap();
    assert_eq!(scene.installed(), INSTALLED);
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let scene = Scene::new();
    scene.write("root/share/photofinish/diary.txt", "");
    let error = scene.install().unwrap_err();
    assert!(tooling::is_bad_input(&error) && error.to_string().contains("--root"), "{error}");
    assert_eq!(scene.installed(), ["share/photofinish/diary.txt"]);
}

#[test]
fn the_default_is_the_users_own_directories() {
    let home = Home::from_variables(|name| match name {
        "HOME" => Some("/h".into()),
        "XDG_DATA_HOME" => Some("/d".into()),
        _ => None,
    });
    let target = Target::usual(home).unwrap();
    assert_eq!(target.program(), Path::new("/h/.local/bin").join(file_name(PHOTOFINISH)));
    assert_eq!(target.layout, Layout::at("/d/photofinish"));
    assert!(tooling::is_bad_input(&Target::usual(Home::default()).unwrap_err()));
}
