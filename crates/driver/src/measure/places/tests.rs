use std::fs;

use comparison::plan::Engines;

use super::*;

/// A directory of made-up checkouts, installations, and a user's home.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Scene {
        Scene(tempfile::tempdir().unwrap())
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    /// An engine with the directory of its configuration in its summary.
    fn engine(&self, configs: &str, name: &str) {
        let text = format!("framework = \"mock\"\nworker = \"engine-mock\"\nsummary = \"from {configs}\"\n");
        self.file(&format!("{configs}/engines/{name}.toml"), &text);
    }

    fn home(&self) -> Home {
        Home::from_variables(|name| (name == "HOME").then(|| self.at("home").into()))
    }

    fn places(&self, executable: &str, given: &GivenPlaces) -> Result<Places> {
        Places::around(&self.at(executable), given, &self.home())
    }

    fn found(&self, executable: &str) -> Places {
        self.places(executable, &GivenPlaces::default()).unwrap()
    }
}

#[test]
fn an_installation_needs_no_checkout_and_writes_where_it_is_called() {
    let scene = Scene::new();
    scene.engine("root/share/photofinish/configs", "mock");
    let places = scene.found("root/bin/photofinish");
    assert_eq!(places.checkout, None);
    assert_eq!(places.workers, scene.at("root/share/photofinish/workers"));
    assert_eq!(places.binary("prepare"), scene.at("root/share/photofinish/workers/prepare"));
    assert_eq!(
        places.binary("{root}/references/python/worker"),
        scene.at("root/share/photofinish/references/python/worker")
    );
    assert_eq!(places.results(), Path::new("results"));
    assert_eq!(places.engine("mock").unwrap().summary, "from root/share/photofinish/configs");
    // An installation works wherever it is moved.
    fs::rename(scene.at("root"), scene.at("moved")).unwrap();
    assert_eq!(scene.found("moved/bin/photofinish").workers, scene.at("moved/share/photofinish/workers"));
}

#[test]
fn a_checkout_is_found_around_the_program_and_an_installation_below_it_is_not_the_checkouts() {
    let scene = Scene::new();
    scene.engine("checkout/configs", "mock");
    scene.file("checkout/xtask/Cargo.toml", "");
    scene.engine("home/.local/share/photofinish/configs", "mock");
    let places = scene.found("checkout/target/debug/photofinish");
    assert_eq!(places.checkout, Some(scene.at("checkout")));
    assert_eq!(places.workers, scene.at("checkout/target/release"), "workers are release builds");
    assert_eq!(places.installed, None);
    scene.engine("checkout/target/inner/share/photofinish/configs", "mock");
    let places = scene.found("checkout/target/inner/bin/photofinish");
    assert_eq!((&places.checkout, places.results()), (&None, PathBuf::from("results")));
}

#[test]
fn a_program_alone_takes_the_users_installation_or_says_how_to_get_one() {
    let scene = Scene::new();
    let error = scene.places("cargo/bin/photofinish", &GivenPlaces::default()).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let error = error.to_string();
    assert!(error.contains("without its workers") && error.contains("cargo xtask install"), "{error}");
    scene.engine("home/.local/share/photofinish/configs", "mock");
    let places = scene.found("cargo/bin/photofinish");
    assert_eq!(places.workers, scene.at("home/.local/share/photofinish/workers"));
}

#[test]
fn a_users_engines_lie_over_those_installed_unless_configs_are_given() {
    let scene = Scene::new();
    let shipped = "root/share/photofinish/configs";
    let own = "home/.config/photofinish";
    scene.engine(shipped, "mock");
    scene.engine(shipped, "other");
    scene.engine(own, "mock");
    scene.engine(own, "mine");
    let places = scene.found("root/bin/photofinish");
    let summary = |places: &Places, name: &str| places.engine(name).map(|engine| engine.summary);
    assert_eq!(summary(&places, "mock").unwrap(), format!("from {own}"));
    assert_eq!(summary(&places, "mine").unwrap(), format!("from {own}"));
    assert_eq!(summary(&places, "other").unwrap(), format!("from {shipped}"));
    let given = GivenPlaces { configs: Some(scene.at(shipped)), workers: None };
    let places = scene.places("root/bin/photofinish", &given).unwrap();
    assert_eq!(summary(&places, "mock").unwrap(), format!("from {shipped}"));
    let error = summary(&places, "mine").unwrap_err().to_string();
    assert!(error.contains("unknown framework \"mine\"; there are mock, other"), "{error}");
}

#[test]
fn configs_that_hold_no_engines_are_named() {
    let scene = Scene::new();
    let given = GivenPlaces { configs: Some(scene.at("nothing")), workers: None };
    let error = scene.places("bin/photofinish", &given).unwrap_err().to_string();
    assert!(error.contains("--configs") && error.contains("nothing/engines"), "{error}");
}

#[test]
fn a_file_comes_with_the_program_where_given_configs_have_none() {
    let scene = Scene::new();
    scene.engine("root/share/photofinish/configs", "mock");
    scene.engine("given", "mock");
    let given = GivenPlaces { configs: Some(scene.at("given")), workers: None };
    let places = scene.places("root/bin/photofinish", &given).unwrap();
    assert_eq!(places.directory_of("native.toml"), scene.at("root/share/photofinish/configs"));
    scene.file("given/native.toml", "");
    assert_eq!(places.directory_of("native.toml"), scene.at("given"));
}
