//! What a tokenizer.json is made of, and those made of vocab.txt, of vocab.json with merges.txt, and of tiktoken's ranks.
//! As transformers 5.24 makes its tokenizers of them (tokenization_utils_tokenizers.py, convert_slow_tokenizer.py,
//! models/*/tokenization_*.py).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base64::prelude::{BASE64_STANDARD, Engine};
use protocol::untrusted;
use serde_json::{Map, Value, json};

use crate::model::{Document, content};

pub(crate) type Result<T> = std::result::Result<T, String>;

/// A tokenizer.json that can be read again.
pub(crate) fn document(value: &Value, derived: String) -> Result<Document> {
    let bytes = serde_json::to_vec(value).expect("a value is valid JSON");
    if bytes.len() as u64 > untrusted::file::INPUT {
        return Err(format!("its tokenizer.json has more than {} MiB", untrusted::file::INPUT >> 20));
    }
    Ok(Document { bytes, derived })
}

/// How a class of transformers makes a tokenizer of its files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Bert,
    Mpnet,
    Gpt2,
    Roberta,
    Qwen2,
    /// `legacy` and `add_prefix_space` of tokenizer_config.json decide about the space in front.
    Llama,
    Gemma,
    XlmRoberta,
    /// As the SentencePiece model itself says.
    Plain,
}

/// Classes whose `add_bos_token` and `add_eos_token` decided over tokenizer.json in transformers 4.
const REBUILT: [&str; 4] = ["LlamaTokenizer", "GemmaTokenizer", "CohereTokenizer", "CodeLlamaTokenizer"];

/// The tokenizer.json of an encoder whose tokenizer_config.json names the ends of a text, which it then has. Its vectors
/// were trained so by transformers 4 (LlamaTokenizerFast.update_post_processor); transformers 5 reads neither key beside
/// a tokenizer.json. `None` if nothing is said, or if the tokens are unknown.
pub(crate) fn with_said_ends(tokenizer: &[u8], said: &Value) -> Option<Document> {
    let class = said.get("tokenizer_class")?.as_str()?;
    let flag = |name: &str| said.get(name).and_then(Value::as_bool);
    let (before, after) = (flag("add_bos_token"), flag("add_eos_token"));
    let is_rebuilt = REBUILT.contains(&class.strip_suffix("Fast").unwrap_or(class));
    if !is_rebuilt || (before.is_none() && after.is_none()) {
        return None;
    }
    let mut tokenizer: Value = serde_json::from_slice(tokenizer).ok()?;
    let id = |token: &str| {
        let mut added = tokenizer["added_tokens"].as_array()?.iter();
        let found = added.find(|one| one["content"] == token).map(|one| &one["id"]);
        found.or_else(|| tokenizer["model"]["vocab"].get(token))?.as_u64().map(|id| id as usize)
    };
    let end = |asked: bool, name: &str| match asked {
        false => Some(None),
        true => content(said.get(name)?).and_then(|token| Some(Some((token, id(token)?)))),
    };
    let ends = ends(end(before.unwrap_or(true), "bos_token")?, end(after.unwrap_or(false), "eos_token")?);
    tokenizer["post_processor"] = ends;
    document(&tokenizer, "the source's tokenizer.json, with the ends that tokenizer_config.json names".into())
        .ok()
}

// The files beside the vocabulary, and the special tokens that they name.

/// A file that is absent is null.
pub(crate) struct Beside<'a> {
    /// tokenizer_config.json
    pub(crate) config: &'a Value,
    /// special_tokens_map.json
    pub(crate) special: &'a Value,
    /// added_tokens.json
    pub(crate) added: &'a Value,
}

/// A token that is recognised in the text before it is split.
pub(crate) struct Added {
    pub(crate) content: String,
    pub(crate) id: Option<usize>,
    /// `single_word`, `lstrip`, `rstrip`, `normalized`, as far as they are said.
    flags: Map<String, Value>,
    special: bool,
}

impl Added {
    pub(crate) fn new(content: &str, id: Option<usize>, special: bool) -> Added {
        Added { content: content.to_owned(), id, flags: Map::new(), special }
    }
}

/// Most tokens that files beside the vocabulary add.
const MOST_ADDED: usize = 1 << 16;

const FLAGS: [&str; 4] = ["single_word", "lstrip", "rstrip", "normalized"];

impl Beside<'_> {
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.config.get(name).and_then(Value::as_bool)
    }

    /// The files that name special tokens, the one that decides first: special_tokens_map.json, but of a repository
    /// that lists its added tokens in tokenizer_config.json only that.
    fn files(&self) -> [&Value; 2] {
        let lists = self.config.get("added_tokens_decoder").is_some();
        if lists { [self.config, &Value::Null] } else { [self.special, self.config] }
    }

    /// A special token, such as `"cls_token"`, or the class's own where none is named; `null` says that there is none.
    pub(crate) fn token(&self, name: &str, default: Option<&str>) -> Option<String> {
        match self.files().into_iter().find_map(|file| file.get(name)) {
            Some(token) => content(token).map(str::to_owned),
            None => default.map(str::to_owned),
        }
    }

    /// The token, or the class's own even where a file says that there is none.
    pub(crate) fn token_or(&self, name: &str, default: &str) -> String {
        self.token(name, Some(default)).unwrap_or_else(|| default.to_owned())
    }

    /// The added tokens, with those called `names`, which may have a text of the class's own.
    pub(crate) fn added(&self, names: &[(&str, Option<&str>)]) -> Result<Vec<Added>> {
        let mut all: Vec<Added> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut push = |content: &str, id: Option<usize>, said: &Value, special: bool| {
            if content.is_empty() {
                return;
            }
            if let Some(&place) = places.get(content) {
                let held: &mut Added = &mut all[place];
                (held.special, held.id) = (held.special | special, held.id.or(id));
                return;
            }
            let said = said.as_object().into_iter().flatten();
            let flags = said.filter(|(name, value)| FLAGS.contains(&name.as_str()) && value.is_boolean());
            let flags = flags.map(|(name, value)| (name.clone(), value.clone())).collect();
            places.insert(content.to_owned(), all.len());
            all.push(Added { content: content.to_owned(), id, flags, special });
        };
        let numbered = self.config.get("added_tokens_decoder").and_then(Value::as_object);
        for (id, token) in numbered.into_iter().flatten() {
            let id = id.parse().map_err(|_| format!("added_tokens_decoder has the id {id:?}"))?;
            let text = content(token).ok_or("added_tokens_decoder has a token without a text")?;
            push(text, Some(id), token, token["special"].as_bool().unwrap_or(false));
        }
        for (name, default) in names {
            let said = self.files().into_iter().find_map(|file| file.get(*name)).unwrap_or(&Value::Null);
            if let Some(text) = self.token(name, *default) {
                push(&text, None, said, true);
            }
        }
        for name in ["additional_special_tokens", "extra_special_tokens"] {
            let lists = self.files().into_iter().filter_map(|file| file.get(name)?.as_array());
            for token in lists.flatten() {
                push(content(token).unwrap_or_default(), None, token, true);
            }
        }
        let older = self.added.as_object().filter(|_| numbered.is_none());
        for (text, id) in older.into_iter().flatten() {
            let id = id.as_u64().ok_or_else(|| format!("added_tokens.json gives {text:?} no id"))?;
            // Those that no file calls special are looked for in the normalised text.
            push(text, Some(id as usize), &json!({ "normalized": true }), false);
        }
        if all.len() > MOST_ADDED {
            return Err(format!("it has {} added tokens", all.len()));
        }
        Ok(all)
    }
}

/// Ids of tokens, while a tokenizer.json is made.
pub(crate) struct Ids {
    pub(crate) vocabulary: BTreeMap<String, usize>,
    /// Those that are not in the vocabulary.
    outside: BTreeMap<String, usize>,
}

impl Ids {
    pub(crate) fn new(vocabulary: BTreeMap<String, usize>) -> Result<Ids> {
        bounded(vocabulary.values().max().map_or(0, |last| *last))?;
        Ok(Ids { vocabulary, outside: BTreeMap::new() })
    }

    pub(crate) fn get(&self, token: &str) -> Result<usize> {
        let found = self.vocabulary.get(token).or_else(|| self.outside.get(token));
        found.copied().ok_or_else(|| format!("its special token {token:?} is not in its vocabulary"))
    }

    /// `added_tokens`: tokens of the vocabulary have its ids, and others the next ones, in the order of their own.
    pub(crate) fn add(&mut self, tokens: Vec<Added>) -> Vec<Value> {
        let (known, mut others): (Vec<_>, Vec<_>) =
            tokens.into_iter().partition(|token| self.vocabulary.contains_key(&token.content));
        others.sort_by_key(|token| token.id.unwrap_or(usize::MAX));
        let first = self.vocabulary.values().max().map_or(0, |last| last + 1);
        let known = known.into_iter().map(|token| (self.vocabulary[&token.content], token));
        let mut all: Vec<_> = known.collect();
        for (place, token) in others.into_iter().enumerate() {
            self.outside.insert(token.content.clone(), first + place);
            all.push((first + place, token));
        }
        all.sort_by_key(|(id, _)| *id);
        let value = |(id, token): (usize, Added)| {
            let mut value = added_token(id, &token.content, token.special);
            for (name, flag) in token.flags {
                value[name] = flag;
            }
            value
        };
        all.into_iter().map(value).collect()
    }
}

// Parts of a tokenizer.json.

pub(crate) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Replaces a space within SentencePiece's pieces.
pub(crate) const SPACE: &str = "\u{2581}";

pub(crate) struct Parts {
    pub(crate) added: Vec<Value>,
    pub(crate) normalizer: Value,
    pub(crate) pre_tokenizer: Value,
    pub(crate) post_processor: Value,
    pub(crate) decoder: Value,
    pub(crate) model: Value,
}

pub(crate) fn whole(parts: Parts) -> Value {
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": parts.added,
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": parts.post_processor,
        "decoder": parts.decoder,
        "model": parts.model,
    })
}

pub(crate) fn added_token(id: usize, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special
    })
}

/// The model with these vocabulary and merges; `fields` are those that are not at their defaults.
pub(crate) fn bpe(vocabulary: Value, merges: Value, fields: &[(&str, Value)]) -> Value {
    let mut model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        "vocab": vocabulary, "merges": merges
    });
    for (field, value) in fields {
        model[*field] = value.clone();
    }
    model
}

pub(crate) fn byte_level(use_regex: bool, add_prefix_space: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex
    })
}

/// The decoder of byte-level BPE.
pub(crate) fn bytes_to_text() -> Value {
    byte_level(true, true)
}

pub(crate) fn split(pattern: &str) -> Value {
    json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
}

pub(crate) fn replace(pattern: Value, content: &str) -> Value {
    json!({ "type": "Replace", "pattern": pattern, "content": content })
}

/// A sequence of `kind`: `"normalizers"`, `"pretokenizers"` or `"decoders"`.
pub(crate) fn sequence(kind: &str, parts: Vec<Value>) -> Value {
    if parts.is_empty() { Value::Null } else { json!({ "type": "Sequence", kind: parts }) }
}

/// A normaliser for SentencePiece's pieces.
pub(crate) fn spaces() -> Value {
    replace(json!({ "String": " " }), SPACE)
}

/// The decoder of pieces, some of which may be bytes; `strips` the space that was put before the text.
pub(crate) fn pieces_to_text(strips: bool, has_bytes: bool) -> Value {
    let spaces = replace(json!({ "String": SPACE }), " ");
    let bytes = has_bytes.then(|| json!({ "type": "ByteFallback" }));
    let fuse = (strips || has_bytes).then(|| json!({ "type": "Fuse" }));
    let strip = strips.then(|| json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    sequence("decoders", [Some(spaces), bytes, fuse, strip].into_iter().flatten().collect())
}

/// A part of a template: a special token with its id, or the text `"A"` or `"B"`; and its type.
type Part<'a> = (&'a str, Option<usize>, usize);

pub(crate) fn template(single: &[Part<'_>], pair: &[Part<'_>]) -> Value {
    let mut special = Map::new();
    let mut part = |&(name, id, kind): &Part<'_>| match id {
        None => json!({ "Sequence": { "id": name, "type_id": kind } }),
        Some(id) => {
            special.insert(name.to_owned(), json!({ "id": name, "ids": [id], "tokens": [name] }));
            json!({ "SpecialToken": { "id": name, "type_id": kind } })
        }
    };
    let [single, pair] = [single, pair].map(|parts| parts.iter().map(&mut part).collect::<Vec<_>>());
    json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special })
}

/// A beginning token before each text, and an end token behind it, as far as there are any.
pub(crate) fn ends(before: Option<(&str, usize)>, after: Option<(&str, usize)>) -> Value {
    if before.is_none() && after.is_none() {
        return Value::Null;
    }
    let around = |text: &'static str, kind: usize| -> Vec<Part<'_>> {
        let special = |(token, id)| (token, Some(id), kind);
        let parts = [before.map(special), Some((text, None, kind)), after.map(special)];
        parts.into_iter().flatten().collect()
    };
    template(&around("A", 0), &[around("A", 0), around("B", 1)].concat())
}

/// The ends that tokenizer_config.json asks for. Unlike with a tokenizer.json, whose template stays, both are absent
/// unless they are asked for.
pub(crate) fn asked_ends(beside: &Beside<'_>, usual: [Option<&str>; 2], ids: &Ids) -> Result<Value> {
    let asked = |flag: &str, token: &str, usual: Option<&str>| {
        let token = beside.flag(flag).unwrap_or(false).then(|| beside.token(token, usual)).flatten();
        token.map(|token| ids.get(&token).map(|id| (token, id))).transpose()
    };
    let before = asked("add_bos_token", "bos_token", usual[0])?;
    let after = asked("add_eos_token", "eos_token", usual[1])?;
    let [before, after] = [&before, &after].map(|end| end.as_ref().map(|(token, id)| (token.as_str(), *id)));
    Ok(ends(before, after))
}

/// `[CLS] A [SEP]`, and with a second text what is between and behind them, of these types.
fn framed(cls: (&str, usize), sep: (&str, usize), is_roberta: bool) -> Value {
    let special = |(token, id), kind| (token, Some(id), kind);
    let single = [special(cls, 0), ("A", None, 0), special(sep, 0)];
    if is_roberta {
        let rest = [special(sep, 0), ("B", None, 0), special(sep, 0)];
        return template(&single, &[&single[..], &rest].concat());
    }
    template(&single, &[&single[..], &[("B", None, 1), special(sep, 1)]].concat())
}

// The kinds of files.

pub(crate) fn utf8(bytes: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8")?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// Most tokens of a vocabulary: the largest known one has 0.9 million.
const MOST_TOKENS: usize = 1 << 21;

pub(crate) fn bounded(count: usize) -> Result<()> {
    match count > MOST_TOKENS {
        true => Err(format!("it has more than {MOST_TOKENS} tokens, or ids beyond that")),
        false => Ok(()),
    }
}

/// WordPiece: a token a line.
pub(crate) fn word_piece(vocabulary: &[u8], class: Class, beside: &Beside<'_>) -> Result<Value> {
    let lines = utf8(vocabulary)?.lines().enumerate();
    // Of two equal lines the later one has the token.
    let mut ids = Ids::new(lines.map(|(id, line)| (line.trim_end().to_owned(), id)).collect())?;
    let usual = match class {
        Class::Mpnet => ["<s>", "</s>", "<pad>", "<mask>", "[UNK]"],
        _ => ["[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]"],
    };
    let names = ["cls_token", "sep_token", "pad_token", "mask_token", "unk_token"];
    let mut named: Vec<_> = names.into_iter().zip(usual.map(Some)).collect();
    named.extend([("bos_token", None), ("eos_token", None)]);
    let added = ids.add(beside.added(&named)?);
    let [cls, sep, _, _, unk] = std::array::from_fn(|place| beside.token_or(names[place], usual[place]));
    if !ids.vocabulary.contains_key(&unk) {
        return Err(format!("it has no line {unk:?}, the token of unknown words"));
    }
    Ok(whole(Parts {
        added,
        normalizer: json!({
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": beside.flag("tokenize_chinese_chars").unwrap_or(true),
            // None: as `lowercase`.
            "strip_accents": beside.flag("strip_accents"),
            "lowercase": beside.flag("do_lower_case").unwrap_or(true),
        }),
        pre_tokenizer: json!({ "type": "BertPreTokenizer" }),
        post_processor: framed((&cls, ids.get(&cls)?), (&sep, ids.get(&sep)?), class == Class::Mpnet),
        decoder: json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
        model: json!({
            "type": "WordPiece", "unk_token": unk, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids.vocabulary
        }),
    }))
}

/// Byte-level BPE: vocab.json and merges.txt.
pub(crate) fn byte_level_bpe(
    vocabulary: &[u8],
    merges: &[u8],
    class: Class,
    beside: &Beside<'_>,
) -> Result<Value> {
    let vocabulary: BTreeMap<String, usize> = serde_json::from_str(utf8(vocabulary)?)
        .map_err(|why| format!("no table of tokens and ids: {why}"))?;
    let mut ids = Ids::new(vocabulary)?;
    let mut pairs = Vec::new();
    for (place, line) in utf8(merges)?.lines().enumerate() {
        // "# #" is a merge.
        if line.starts_with("#version") || line.is_empty() {
            continue;
        }
        let pair = line.trim_end().split_once(' ').filter(|(_, right)| !right.contains(' '));
        let (left, right) = pair.ok_or_else(|| format!("line {} is no pair of tokens", place + 1))?;
        let made = format!("{left}{right}");
        if let Some(unknown) =
            [left, right, &made].into_iter().find(|token| !ids.vocabulary.contains_key(*token))
        {
            return Err(format!("line {} needs the token {unknown:?}, which is in no vocab.json", place + 1));
        }
        pairs.push((left, right));
    }
    let prefix = beside.flag("add_prefix_space").unwrap_or(false);
    let end = Some("<|endoftext|>");
    let names: &[(&str, Option<&str>)] = match class {
        Class::Qwen2 => &[("unk_token", end), ("bos_token", None), ("eos_token", end), ("pad_token", end)],
        Class::Roberta => &[
            ("bos_token", Some("<s>")),
            ("eos_token", Some("</s>")),
            ("unk_token", Some("<unk>")),
            ("sep_token", Some("</s>")),
            ("pad_token", Some("<pad>")),
            ("cls_token", Some("<s>")),
            ("mask_token", Some("<mask>")),
        ],
        _ => &[("unk_token", end), ("bos_token", end), ("eos_token", end), ("pad_token", None)],
    };
    let added = ids.add(beside.added(names)?);
    let plain = byte_level(true, prefix);
    let (normalizer, pre_tokenizer, post_processor) = match class {
        Class::Qwen2 => (
            json!({ "type": "NFC" }),
            sequence("pretokenizers", vec![split(QWEN2), byte_level(false, prefix)]),
            asked_ends(beside, [None, end], &ids)?,
        ),
        Class::Roberta => {
            let [cls, sep] = [("cls_token", "<s>"), ("sep_token", "</s>")]
                .map(|(name, usual)| beside.token_or(name, usual));
            (Value::Null, plain, framed((&cls, ids.get(&cls)?), (&sep, ids.get(&sep)?), true))
        }
        _ => (Value::Null, plain, asked_ends(beside, [end, end], &ids)?),
    };
    let model = bpe(json!(ids.vocabulary), json!(pairs), &[]);
    Ok(whole(Parts { added, normalizer, pre_tokenizer, post_processor, decoder: bytes_to_text(), model }))
}

/// Longest token, in bytes, that is put together from others: the time to find its parts is quadratic.
pub(crate) const LONGEST: usize = 256;

/// Most ways to put tokens together: Gemma's vocabulary has 0.6 million.
pub(crate) const MOST_MERGES: usize = 1 << 22;

/// tiktoken's ranks, as Llama 3 has them: a line is a token in base64, a space, and its rank.
pub(crate) fn tiktoken(ranks: &[u8], beside: &Beside<'_>) -> Result<Value> {
    let mut tokens: HashMap<Vec<u8>, usize> = HashMap::new();
    for (place, line) in utf8(ranks)?.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        bounded(place)?;
        let wrong = || format!("line {} is no token with a rank", place + 1);
        let (token, rank) = line.split_once(' ').ok_or_else(wrong)?;
        let token = BASE64_STANDARD.decode(token).ok().filter(|token| !token.is_empty()).ok_or_else(wrong)?;
        if token.len() > LONGEST {
            return Err(format!("it has a token of {} bytes; at most {LONGEST} are supported", token.len()));
        }
        let rank: u32 = rank.trim().parse().map_err(|_| wrong())?;
        tokens.insert(token, rank as usize);
    }
    let mut found = Vec::new();
    for (token, &rank) in &tokens {
        for at in 1..token.len() {
            if let (Some(&left), Some(&right)) = (tokens.get(&token[..at]), tokens.get(&token[at..])) {
                if found.len() == MOST_MERGES {
                    return Err("it has too many ways to put its tokens together".into());
                }
                found.push((rank, left, right, &token[..at], &token[at..]));
            }
        }
    }
    found.sort_unstable_by_key(|&(rank, left, right, ..)| (rank, left, right));
    let characters = characters();
    let word = |bytes: &[u8]| bytes.iter().map(|&byte| characters[usize::from(byte)]).collect::<String>();
    let pairs: Vec<_> = found.iter().map(|(.., left, right)| (word(left), word(right))).collect();
    let mut ids = Ids::new(tokens.iter().map(|(token, &rank)| (word(token), rank)).collect())?;
    if ids.vocabulary.is_empty() {
        return Err("it has no ranks".into());
    }
    let added = beside.added(&[("bos_token", None), ("eos_token", None), ("pad_token", None)])?;
    let added = ids.add(reserved(added, tokens.len()));
    Ok(whole(Parts {
        added,
        normalizer: Value::Null,
        pre_tokenizer: sequence("pretokenizers", vec![split(LLAMA3), byte_level(false, false)]),
        post_processor: asked_ends(beside, [None, None], &ids)?,
        decoder: bytes_to_text(),
        model: bpe(json!(ids.vocabulary), json!(pairs), &[("ignore_merges", json!(true))]),
    }))
}

/// The tokens with one for each id between `first` and the last of them.
fn reserved(mut added: Vec<Added>, first: usize) -> Vec<Added> {
    let taken: BTreeSet<usize> = added.iter().filter_map(|token| token.id).collect();
    let last = taken.last().copied().unwrap_or(0).min(first + MOST_ADDED);
    let gaps = (first..last).filter(|id| !taken.contains(id));
    let name = |id: usize| format!("<|reserved_token_{}|>", id - first);
    let gap = |id: usize| Added::new(&name(id), Some(id), true);
    added.extend(gaps.map(gap).collect::<Vec<_>>());
    added
}

/// The character of each byte in byte-level BPE: itself where it can be seen, else one from 256 on.
fn characters() -> Vec<char> {
    let seen = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let character = |byte: u8| {
        if seen(byte) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    (0..=u8::MAX).map(character).collect()
}
