//! The command line as stored with results. Results are published, so it must not contain secrets.

use std::borrow::Cow;

/// Replaces a value that is not stored.
const MASK: &str = "***";

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

/// The command that started this program.
pub fn typed() -> Vec<String> {
    masked(std::env::args())
}

/// The words without possible secrets: values of flags and variables with such names, and credentials in
/// URLs.
fn masked(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut is_value = false;
    let mut mask = |word: String| {
        if is_value && !word.starts_with("--") {
            is_value = false;
            return MASK.to_owned();
        }
        is_value = word.starts_with('-') && !word.contains('=') && is_secret(&word);
        match word.split_once('=') {
            Some((name, _)) if is_name(name) && is_secret(name) => format!("{name}={MASK}"),
            _ => without_credentials(&word),
        }
    };
    words.into_iter().map(&mut mask).collect()
}

/// Whether a value with this name may be secret.
pub(crate) fn is_secret(name: &str) -> bool {
    let parts = name.split(['-', '_', '.']);
    parts.map(str::to_lowercase).any(|part| SECRET.contains(&part.as_str()))
}

fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// The word without users, passwords and secret parameters in URLs.
fn without_credentials(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let host = host.rsplit_once('@').map_or(Cow::Borrowed(host), |(_, host)| format!("{MASK}@{host}").into());
    let path = match path.split_once('?') {
        None => path.to_owned(),
        Some((path, parameters)) => {
            let each = parameters.split('&').map(|parameter| match parameter.split_once('=') {
                Some((name, _)) if is_secret(name) => format!("{name}={MASK}"),
                _ => parameter.to_owned(),
            });
            format!("{path}?{}", each.collect::<Vec<_>>().join("&"))
        }
    };
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(line: &str) -> String {
        masked(line.split(' ').map(str::to_owned)).join(" ")
    }

    #[test]
    fn values_of_flags_that_may_be_secret_are_not_kept() {
        assert_eq!(
            kept("photofinish compare --hf-token abc --quick"),
            "photofinish compare --hf-token *** --quick"
        );
        assert_eq!(kept("x --api-key=abc --password pw"), "x --api-key=*** --password ***");
        assert_eq!(
            kept("x HF_TOKEN=abc --option client_secret=abc"),
            "x HF_TOKEN=*** --option client_secret=***"
        );
        assert_eq!(kept("x --token --quick"), "x --token --quick", "a flag without a value masks no other");
    }

    #[test]
    fn addresses_keep_no_credentials() {
        assert_eq!(
            kept("x https://user:pw@host:80/a?b=1 --model=https://token@host/m"),
            "x https://***@host:80/a?b=1 --model=https://***@host/m"
        );
        assert_eq!(
            kept("x https://host/a?name=n&sig=abc&access_token=t"),
            "x https://host/a?name=n&sig=***&access_token=***"
        );
    }

    #[test]
    fn a_command_without_secrets_is_kept_as_it_is() {
        let line = "photofinish compare --new-tokens 8 --prompt-tokens=16 --tokens 1,2 --kv-cache on --model hf:a/b@c";
        assert_eq!(kept(line), line);
    }
}
