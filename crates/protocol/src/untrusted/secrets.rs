//! What may be secret in words and settings. Results are published, so nothing that is written may hold it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// Replaces a value that is not stored.
pub const MASK: &str = "***";

/// Parts of the names of flags, variables or URL parameters that may have secret values. A name is split at
/// its hyphens, underscores and dots: `--tokens` counts tokens and does not match.
const SECRET: [&str; 20] = [
    "apikey",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "key",
    "login",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "pat",
    "pwd",
    "secret",
    "secrets",
    "sig",
    "signature",
    "token",
];

/// Words of this length also match at the end of a part: `accessToken`.
const LONG: usize = 5;

/// Shorter secrets are not looked for in a worker's words: they would be found in others.
const SHORTEST: usize = 8;

/// Whether a value with this name may be secret.
pub fn is_secret(name: &str) -> bool {
    let is_named = |part: &str, word: &str| part == word || word.len() >= LONG && part.ends_with(word);
    let mut parts = name.split(['-', '_', '.']).map(str::to_lowercase);
    parts.any(|part| SECRET.iter().any(|word| is_named(&part, word)))
}

/// A setting's value as it is stored. A short number is no secret: `token_ms = 2`.
pub fn setting<'a>(name: &str, value: &'a str) -> Cow<'a, str> {
    let is_plain = value.len() < SHORTEST && value.parse::<f64>().is_ok();
    if is_secret(name) && !value.is_empty() && !is_plain { MASK.into() } else { without_credentials(value) }
}

/// For `serialize_with`: settings or variables by name, as they are stored.
///
/// # Errors
/// Those of the serialiser.
pub fn settings<S: Serializer>(values: &BTreeMap<String, String>, to: S) -> Result<S::Ok, S::Error> {
    stored(values).serialize(to)
}

/// Settings or variables by name, as they are stored.
pub fn stored(values: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    values.iter().map(|(name, value)| (name.clone(), setting(name, value).into_owned())).collect()
}

/// A command line as it is stored: without the values of flags and variables with secret names, and without
/// credentials in addresses.
pub fn command(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut is_value = false;
    let mut mask = |word: String| {
        if is_value && !word.starts_with("--") {
            is_value = false;
            return MASK.to_owned();
        }
        is_value = word.starts_with('-') && !word.contains('=') && is_secret(&word);
        match word.split_once('=') {
            Some((name, _)) if is_name(name) && is_secret(name) => format!("{name}={MASK}"),
            _ => without_credentials(&word).into_owned(),
        }
    };
    words.into_iter().map(&mut mask).collect()
}

fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// The text without users, passwords and secret parameters in its addresses. The user alone of an SSH address is no
/// secret: all use `git`.
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    let ends = |c: char| c.is_whitespace() || "\"'`<>".contains(c);
    let (mut kept, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find(ends).unwrap_or(after.len());
        kept = kept + before + "://" + &address(&after[..end], before.ends_with("ssh"));
        rest = &after[end..];
    }
    if kept.is_empty() { text.into() } else { (kept + rest).into() }
}

/// An address behind its scheme.
fn address(rest: &str, is_ssh: bool) -> String {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let host = match host.rsplit_once('@') {
        Some((user, host)) if !is_ssh || user.contains(':') => format!("{MASK}@{host}"),
        _ => host.to_owned(),
    };
    let Some((path, parameters)) = path.split_once('?') else { return host + path };
    let each = parameters.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={MASK}"),
        _ => parameter.to_owned(),
    });
    format!("{host}{path}?{}", each.collect::<Vec<_>>().join("&"))
}

/// The secrets among variables, to be taken out of what a program says that was given them. A number is none: it would be
/// found in readings.
pub fn of_variables(variables: &BTreeMap<String, String>) -> Vec<String> {
    let masked = variables.iter().filter(|(name, value)| setting(name, value) != value.as_str());
    let values = masked.map(|(_, value)| value.clone());
    values.filter(|value| value.len() >= SHORTEST && value.parse::<f64>().is_err()).collect()
}

/// The text without these secrets.
pub fn without(text: String, secrets: &[String]) -> String {
    secrets.iter().fold(text, |text, secret| match text.contains(secret) {
        true => text.replace(secret, MASK),
        false => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_names_and_credentials_are_not_kept() {
        for (line, kept) in [
            ("x --hf-token abc --quick", "x --hf-token *** --quick"),
            ("x --api-key=abc --password pw", "x --api-key=*** --password ***"),
            ("x HF_TOKEN=abc --option client_secret=abc", "x HF_TOKEN=*** --option client_secret=***"),
            ("x accessToken=abc", "x accessToken=***"),
            // A flag without a value masks no other.
            ("x --token --quick", "x --token --quick"),
            (
                "x https://user:pw@host:80/a?b=1 --model=https://token@host/m",
                "x https://***@host:80/a?b=1 --model=https://***@host/m",
            ),
            (
                "x https://host/a?name=n&sig=abc&access_token=t",
                "x https://host/a?name=n&sig=***&access_token=***",
            ),
            ("x git:ssh://git@host/a ssh://git:pw@host/a", "x git:ssh://git@host/a ssh://***@host/a"),
        ] {
            assert_eq!(command(line.split(' ').map(str::to_owned)).join(" "), kept);
        }
        let line = "x compare --new-tokens 8 --prompt-tokens=16 --tokens 1,2 --kv-cache on --model hf:a/b@c";
        assert_eq!(command(line.split(' ').map(str::to_owned)).join(" "), line, "without secrets it stays");
    }

    #[test]
    fn a_text_loses_what_the_variables_of_its_program_hide() {
        let variables = [
            ("HF_TOKEN", "hf_abcdef"),
            ("PROXY", "http://bob:pw@proxy:80"),
            ("API_KEY", "1234567890"),
            ("MY_PASS", "short"),
            ("THREADS", "eight-of-them"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let secrets = of_variables(&variables.into());
        let said = "hf_abcdef, 1234567890 ns, short, eight-of-them; http://bob:pw@proxy:80";
        let kept = "***, 1234567890 ns, short, eight-of-them; ***";
        assert_eq!(without(said.to_owned(), &secrets), kept);
        let said = crate::untrusted::ForeignText::new("cannot read \"https://a:b@host/x\": 401");
        assert_eq!(said.as_str(), "cannot read \"https://***@host/x\": 401");
        assert_eq!(setting("token_ms", "2"), "2");
    }
}
