//! Servers as columns: one in this test that computes what the mock does, honestly or not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Installation, array, figure, has_outcome, outcome, program, row, rule};

/// The finaliser of splitmix64, as in the mock.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The mock's state behind tokens.
fn behind(tokens: &[u64]) -> u64 {
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, |state, token| mix(state ^ token))
}

fn number(state: u64, place: u64) -> f32 {
    (mix(state ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 40) as f32
}

/// The mock's logits of its sixteen tokens.
fn logits(tokens: &[u64]) -> Vec<f32> {
    (0..16).map(|id| number(behind(tokens), id) / (1 << 20) as f32).collect()
}

fn most_likely(logits: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&one, &other| logits[other].total_cmp(&logits[one]));
    order
}

/// The mock's most likely tokens behind a prompt.
fn continued(prompt: &[u64], count: usize) -> Vec<u64> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        tokens.push(most_likely(&logits(&tokens))[0] as u64);
    }
    tokens.split_off(prompt.len())
}

/// `top_logprobs` behind a prompt, by a model whose logits are so many times the mock's.
fn shown(prompt: &[u64], count: usize, times: f32) -> Value {
    let logits: Vec<f32> = logits(prompt).iter().map(|logit| logit * times).collect();
    let sum = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
    let of = |&token: &usize| (format!("token_id:{token}"), json!(f64::from(logits[token]) - sum));
    let top: serde_json::Map<String, Value> = most_likely(&logits)[..count].iter().map(of).collect();
    json!({"tokens": ["t"], "top_logprobs": [top]})
}

/// The vectors that the mock gives texts.
fn vectors(texts: &Value, lie: &str) -> Value {
    let of_text = |(index, text): (usize, &Value)| {
        let tokens: Vec<u64> = array(text).iter().map(|id| id.as_u64().unwrap()).collect();
        let state = mix(behind(&tokens));
        let vector: Vec<f32> = (0..32).map(|place| number(state, place) / (1 << 23) as f32 - 1.0).collect();
        let vector = if lie == "model" { vector.iter().rev().copied().collect() } else { vector };
        json!({"index": index, "embedding": vector})
    };
    let data: Vec<Value> = array(texts).iter().enumerate().map(of_text).collect();
    let tokens: usize = array(texts).iter().map(|text| array(text).len()).sum();
    json!({"data": data, "usage": {"prompt_tokens": tokens + usize::from(lie == "usage")}})
}

/// The address of a server with this lie, or with none.
fn served(lie: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || answered(connection, lie));
        }
    });
    address
}

/// Answers the requests of a connection; `None` at its end.
fn answered(mut to: TcpStream, lie: &str) -> Option<()> {
    to.set_nodelay(true).ok()?;
    let mut from = BufReader::new(to.try_clone().ok()?);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let begun = head.len();
            (from.read_line(&mut head).ok()? > 0).then_some(())?;
            let header = head[begun..].to_lowercase();
            length = header.strip_prefix("content-length:").map_or(length, |it| it.trim().parse().unwrap());
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).ok()?;
        if !head.contains(" /v1/completions ") {
            let is_known = [" /v1/models ", " /v1/embeddings "].iter().any(|path| head.contains(path));
            let status = if is_known { "200 OK" } else { "404 Not Found" };
            let text = match serde_json::from_slice::<Value>(&body) {
                // The first request, of one text, finds whether there are vectors.
                Ok(body) if array(&body["input"]).len() > 1 => vectors(&body["input"], lie),
                Ok(body) => vectors(&body["input"], ""),
                Err(_) => json!({"data": [{"id": "mocked"}]}),
            };
            let text = text.to_string();
            write!(to, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{text}", text.len()).ok()?;
            continue;
        }
        let body: Value = serde_json::from_slice(&body).unwrap();
        let prompt: Vec<u64> = array(&body["prompt"]).iter().map(|id| id.as_u64().unwrap()).collect();
        let asked = body["max_tokens"].as_u64().unwrap() as usize;
        // The requests that find out how to ask are honest.
        let lie = if asked > 2 || ["unnamed", "precision"].contains(&lie) { lie } else { "" };
        let mut tokens = continued(&prompt, asked);
        match lie {
            "model" => tokens.iter_mut().for_each(|token| *token = (*token + 1) % 16),
            "drops" => tokens.truncate(asked - 1),
            _ => {}
        }
        write!(to, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
        let event = |mut to: &TcpStream, data: &Value| {
            let text = format!("data: {data}\n\n");
            write!(to, "{:x}\r\n{text}\r\n", text.len()).ok()
        };
        for (step, token) in tokens.iter().enumerate() {
            match (step, lie) {
                (3, "closes") => return None,
                (3, "stalls") => std::thread::sleep(Duration::from_secs(600)),
                _ => {}
            }
            let ids = if lie == "unnamed" { json!(null) } else { json!([token]) };
            let times = if lie == "precision" { 0.97 } else { 1.0 };
            let shown = body["logprobs"].as_u64().map(|count| shown(&prompt, count as usize, times));
            event(&to, &json!({"choices": [{"text": "t", "token_ids": ids, "logprobs": shown}]}))?;
        }
        let cached = if lie == "cached" { prompt.len() - 2 } else { 0 };
        let usage = json!({"prompt_tokens": prompt.len(), "completion_tokens": tokens.len() - usize::from(lie == "usage"),
            "prompt_tokens_details": {"cached_tokens": cached}});
        let timings = json!({"draft_n": 4, "draft_n_accepted": 3});
        event(&to, &json!({"choices": [], "usage": usage, "timings": timings}))?;
        write!(to, "0\r\n\r\n").ok()?;
    }
}

fn installation() -> Installation {
    let installation = Installation::new().engine("ours", &[("token_ms", "1")]);
    installation.of_worker("openai", "openai", "reference-openai", "reference = true\n");
    let suite =
        "new_tokens = 6\nrounds = 2\niterations = 2\n[[prompts]]\ntokens = [1, 2, 3, 4, 5, 6, 7, 8]\n";
    std::fs::write(installation.path("configs/suites/default.toml"), suite).unwrap();
    installation
}

#[test]
fn a_server_is_a_column_and_what_it_hides_is_unverified() {
    let _ = program("reference-openai");
    let (one, two) = (served(""), served("usage"));
    let report = installation().json(1, &format!("--frameworks ours,http://{one},http://{two} --rounds 2"));
    assert_eq!([outcome(&report, "ours"), outcome(&report, &one)], [("measured", ""); 2]);
    has_outcome(&report, &two, "failed", &["it made 5 tokens, and it sent 6"]);
    let found = row(&report, &one);
    assert_eq!(
        (&found["kind"], &found["memory"], &found["threads"]),
        (&"server".into(), &Value::Null, &Value::Null)
    );
    let shown = found["agreement"]["shown"].as_u64().unwrap();
    assert!(shown > 0 && shown % 5 == 0, "five log-probabilities behind each token: {shown}");
    assert!(figure(&report, &one, "throughput").is_some() && figure(&report, &one, "load").is_none());
    assert!(rule(&report, "R1")["unverified"].as_str().unwrap().contains(&one));
    assert!(report["plan"]["work"].to_string().contains("\"decode\":\"greedy\""));
}

#[test]
fn servers_that_lie_are_struck_or_failed_and_the_others_are_measured() {
    let _ = program("reference-openai");
    for (lie, state, reason) in [
        ("model", "struck", "R11: "),
        ("drops", "failed", "the server gave 5 of the 6 tokens asked for"),
        ("precision", "struck", "R11: a logit differs by "),
        ("cached", "failed", "6 of the prompt's 8 tokens in a cache"),
        ("closes", "failed", "the answer broke off"),
        ("stalls", "failed", "it was not done after 3 s"),
    ] {
        let address = served(lie);
        let line = format!("--frameworks ours,http://{address} --rounds 2 --timeout 3s");
        let report = installation().json(1, &line);
        has_outcome(&report, &address, state, &[reason]);
        assert_eq!(outcome(&report, "ours"), ("measured", ""), "{lie}");
    }
    let address = served("unnamed");
    let report = installation().json(0, &format!("--frameworks ours,http://{address} --rounds 2"));
    assert!(rule(&report, "R11")["unverified"].as_str().unwrap().contains("no ids"), "{report}");
}

#[test]
fn a_shared_prefix_may_be_cached_and_what_a_server_says_of_its_requests_is_shown() {
    let _ = program("reference-openai");
    let address = served("cached");
    let line = format!("--frameworks ours,http://{address} --rounds 2 --shared-prefix");
    let installation = installation();
    let report = installation.json(0, &format!("{line} 6"));
    let served = &row(&report, &address)["served"];
    let count = |name: &str| served[name].as_u64().unwrap();
    assert_eq!(count("cached_tokens") * 8, count("prompt_tokens") * 6, "{served}");
    assert_eq!(count("accepted_tokens") * 4, count("drafted_tokens") * 3, "{served}");
    assert!(report["plan"]["work"].to_string().contains("\"shared_prefix\":6"));
    installation.refuses(&[(&format!("{line} 8"), &["leaves prompt", "none of its own"])]);
}

#[test]
fn a_server_gives_vectors_of_texts() {
    let _ = program("reference-openai");
    let installation = Installation::encoder().engine("ours", &[("prefill_token_ms", "1")]);
    installation.of_worker("openai", "openai", "reference-openai", "reference = true\n");
    let addresses = ["", "usage", "model"].map(served);
    let [one, usage, model] = &addresses;
    let line = addresses.iter().map(|address| format!(",http://{address}")).collect::<String>();
    let report = installation.json(1, &format!("--frameworks ours{line} --rounds 2"));
    assert_eq!(outcome(&report, one), ("measured", ""));
    has_outcome(&report, usage, "failed", &["the server says that the texts have"]);
    has_outcome(&report, model, "struck", &["R11: "]);
    let unverified = rule(&report, "R11")["unverified"].to_string();
    assert!(!unverified.contains("no ids"), "{unverified}");
}

#[test]
fn callers_of_a_server_have_a_connection_each() {
    let _ = program("reference-openai");
    let address = served("");
    let report =
        installation().json(0, &format!("--frameworks ours,http://{address} --callers 4 --rounds 2"));
    assert_eq!(outcome(&report, &address), ("measured", ""));
    assert!(figure(&report, &address, "request_throughput").is_some(), "{report}");
}

#[test]
fn what_a_server_cannot_do_is_refused_before_anything_is_asked() {
    installation().refuses(&[
        ("--frameworks http://127.0.0.1:1", &["name a framework, too"]),
        ("--frameworks ours,http://127.0.0.1:1 --decode forced", &["chooses its own tokens"]),
        ("--frameworks ours,http://10.0.0.1:1", &["only with --remote"]),
        ("--frameworks ours,http://127.0.0.1.example.org:1", &["only with --remote"]),
        ("--frameworks ours,http://me:secret@127.0.0.1:1", &["PHOTOFINISH_KEY_FILE"]),
    ]);
}
