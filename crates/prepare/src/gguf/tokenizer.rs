//! `tokenizer.ggml.*` to tokenizer.json.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

use super::reader::{Metadata, missing};
use crate::model::Document;
use crate::vocabulary::{
    self, LLAMA3, QWEN2, SPACE, added_token, bpe, byte_level, bytes_to_text, ends, pieces_to_text, spaces,
    split, whole,
};

/// The tokenizer, or the reason why none can be built. That is no error: token ids can still be fed to
/// the model.
pub(crate) fn build(metadata: &Metadata<'_>) -> Result<Document, String> {
    let scheme = match metadata.text("tokenizer.ggml.model")? {
        None => return Err("the GGUF holds no tokenizer".into()),
        Some(name @ ("gpt2" | "llama")) => name,
        Some(other) => {
            return Err(format!(
                "its tokenizer is of the kind {other:?}; supported are \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece)"
            ));
        }
    };
    let vocabulary = Vocabulary::read(metadata)?;
    let parts = match scheme {
        "gpt2" => self::parts(metadata, &vocabulary)?,
        _ => sentencepiece_parts(metadata, &vocabulary)?,
    };
    let tokenizer = whole(vocabulary::Parts {
        added: vocabulary.added(),
        post_processor: post_processor(metadata, &vocabulary, &parts)?,
        model: bpe(json!(vocabulary.ids), json!(parts.merges), &parts.model),
        normalizer: parts.normalizer,
        pre_tokenizer: parts.pre_tokenizer,
        decoder: parts.decoder,
    });
    vocabulary::document(&tokenizer, format!("built from the GGUF's {}", parts.derived))
}

/// Puts the beginning- and end-of-sequence tokens around a text, if the file says so.
fn post_processor(
    metadata: &Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
    parts: &Parts,
) -> Result<Value, String> {
    let asked = |name: &str, default: bool| {
        Ok::<_, String>(metadata.flag(&format!("tokenizer.ggml.add_{name}_token"))?.unwrap_or(default))
    };
    let token = |name: &str, usual: usize| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let id = metadata.count(&key)?.unwrap_or(usual);
        let token = vocabulary.tokens.get(id);
        token
            .map(|&token| (token, id))
            .ok_or_else(|| format!("metadata {key:?} is {id}, but there is no such token"))
    };
    let [usual_bos, usual_eos] = parts.usual_ends;
    let bos = if asked("bos", parts.add_bos)? { Some(token("bos", usual_bos)?) } else { None };
    let eos = if asked("eos", false)? { Some(token("eos", usual_eos)?) } else { None };
    Ok(ends(bos, eos))
}

// Byte-level BPE.

fn parts(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Parts, String> {
    let said = metadata.text("tokenizer.ggml.pre")?;
    let name = match (said, metadata.text("general.architecture")?) {
        (Some(name), _) if name != "default" => name,
        // Older files have no such name, and some converters do not know it.
        (_, Some("qwen2" | "qwen3")) => "qwen2",
        _ => "default",
    };
    let splitting = SPLITTINGS
        .iter()
        .find(|splitting| splitting.names.split(' ').any(|known| known == name))
        .ok_or_else(|| {
            let known: Vec<_> = SPLITTINGS.iter().flat_map(|splitting| splitting.names.split(' ')).collect();
            format!("its pre-tokenizer {name:?} is not known; known are {}", known.join(", "))
        })?;
    let (merges, left_out) = vocabulary.merges(metadata)?;
    let (normalizer, decoder) = match splitting.raw {
        true => (spaces(), pieces_to_text(false, true)),
        // Their own tokenizers compose characters.
        false if matches!(name, "qwen2" | "qwen35") => (json!({ "type": "NFC" }), bytes_to_text()),
        false => (Value::Null, bytes_to_text()),
    };
    let because = match said {
        Some(said) if said == name => String::new(),
        said => format!(" because the file says {:?}", said.unwrap_or("nothing")),
    };
    let without = match left_out {
        0 => String::new(),
        count => format!(", without {count} merges of unknown tokens"),
    };
    Ok(Parts {
        merges,
        normalizer,
        pre_tokenizer: splitting.pre_tokenizer(),
        decoder,
        model: vec![("ignore_merges", json!(splitting.whole_words)), ("byte_fallback", json!(splitting.raw))],
        add_bos: splitting.begun,
        usual_ends: [11, 11],
        derived: format!("vocabulary and merges, pre-tokenizer {name:?}{because}{without}"),
    })
}

// Common parts of both schemes of tokenizers: tokens with their types, and the parts of a tokenizer.json.

/// Values of `tokenizer.ggml.token_type`.
mod token_type {
    pub(crate) const NORMAL: i64 = 1;
    pub(crate) const UNKNOWN: i64 = 2;
    pub(crate) const CONTROL: i64 = 3;
    pub(crate) const USER_DEFINED: i64 = 4;
    /// A placeholder for an id that no text has.
    pub(crate) const UNUSED: i64 = 5;
}

/// The differences of the two schemes.
struct Parts {
    merges: Vec<(String, String)>,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    /// Fields of the BPE model that are not at their defaults.
    model: Vec<(&'static str, Value)>,
    /// Whether a text begins with the beginning-of-sequence token where the file does not say.
    add_bos: bool,
    /// llama.cpp's ids of the beginning and the end token where the file has none.
    usual_ends: [usize; 2],
    derived: String,
}

struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<i64>,
    /// Ids of all tokens that a text can have; of two with one text the later one's, as in llama.cpp.
    ids: BTreeMap<&'a str, usize>,
    /// Special tokens take the white space behind them.
    strips: bool,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &Metadata<'a>) -> Result<Vocabulary<'a>, String> {
        let key = "tokenizer.ggml.tokens";
        let tokens = metadata.texts(key)?.ok_or_else(|| missing(key))?;
        let count = tokens.len();
        let types = match metadata.integers("tokenizer.ggml.token_type")? {
            None => vec![token_type::NORMAL; count],
            Some(types) if types.len() == count => types,
            Some(types) => return Err(format!("it has {count} tokens, but {} token types", types.len())),
        };
        let all = tokens.iter().zip(&types).enumerate();
        let usable = all.filter(|(_, (token, kind))| **kind != token_type::UNUSED && !token.is_empty());
        let ids = usable.map(|(id, (&token, _))| (token, id)).collect();
        // llama.cpp knows Phi-3's by its name.
        let name = metadata.text("general.name")?.unwrap_or_default().to_lowercase();
        Ok(Vocabulary { tokens, types, ids, strips: name.contains("phi-3") || name.contains("phi3") })
    }

    /// Tokens that are recognised in the text before it is split.
    fn added(&self) -> Vec<Value> {
        let added = self.tokens.iter().zip(&self.types).enumerate();
        let added = added.filter(|(id, (token, _))| self.ids.get(**token) == Some(id));
        let added = added.filter_map(|(id, (&token, &kind))| {
            let special = match kind {
                token_type::CONTROL | token_type::UNKNOWN => true,
                token_type::USER_DEFINED => false,
                _ => return None,
            };
            let rstrip = self.strips && !["<unk>", "<s>", "<|endoftext|>"].contains(&token);
            let mut value = added_token(id, token, special);
            value["rstrip"] = json!(rstrip);
            Some(value)
        });
        added.collect()
    }

    /// `tokenizer.ggml.merges` of which both parts and the result are tokens, and how many are not: llama.cpp never
    /// applies those.
    fn merges(&self, metadata: &Metadata<'_>) -> Result<(Vec<(String, String)>, usize), String> {
        let key = "tokenizer.ggml.merges";
        let all = metadata.texts(key)?.ok_or_else(|| missing(key))?;
        let mut seen = HashSet::new();
        let pair = |merge: &&'_ str| {
            // A part may itself begin with a space.
            let (at, _) = merge.char_indices().skip(1).find(|(_, letter)| *letter == ' ')?;
            let (left, right) = (&merge[..at], &merge[at + 1..]);
            let whole = format!("{left}{right}");
            let are_tokens = [left, right, &whole].iter().all(|token| self.ids.contains_key(token));
            (are_tokens && seen.insert((left.to_owned(), right.to_owned())))
                .then(|| (left.to_owned(), right.to_owned()))
        };
        let merges: Vec<_> = all.iter().filter_map(pair).collect();
        if merges.is_empty() {
            return Err("it has no merges, so that no text can be put together".into());
        }
        let left_out = all.len() - merges.len();
        Ok((merges, left_out))
    }
}

// SentencePiece's BPE, as Llama 2, Mistral and TinyLlama have it.
//
// SentencePiece joins the two neighbours with the best-scored union; tokenizers needs a list of merges. The
// list is made as in Hugging Face's own conversion: every way to put a piece together from two others, the
// piece with the best score first.

fn sentencepiece_parts(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Parts, String> {
    if metadata.contains("tokenizer.ggml.precompiled_charsmap")
        || metadata.flag("tokenizer.ggml.remove_extra_whitespaces")? == Some(true)
    {
        return Err("its tokenizer normalises text in a way that is not supported".into());
    }
    let merges = merges(metadata, vocabulary)?;
    let add_prefix = metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut normalizers = vec![spaces()];
    if add_prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
    }
    let unknown = vocabulary.types.iter().position(|&kind| kind == token_type::UNKNOWN);
    let has_bytes = (0..=u8::MAX).all(|byte| vocabulary.ids.contains_key(&*format!("<0x{byte:02X}>")));
    Ok(Parts {
        merges,
        normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
        pre_tokenizer: Value::Null,
        decoder: pieces_to_text(add_prefix, true),
        model: vec![
            ("unk_token", json!(unknown.map(|id| vocabulary.tokens[id]))),
            ("fuse_unk", json!(true)),
            ("byte_fallback", json!(has_bytes)),
        ],
        add_bos: true,
        usual_ends: [1, 2],
        derived: "SentencePiece vocabulary and scores".into(),
    })
}

fn merges(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Vec<(String, String)>, String> {
    let key = "tokenizer.ggml.scores";
    let scores = metadata.floats(key)?.ok_or_else(|| missing(key))?;
    let count = vocabulary.tokens.len();
    if scores.len() != count {
        return Err(format!("it has {count} tokens, but {} scores", scores.len()));
    }
    let is_normal = |id: &usize| vocabulary.types[*id] == token_type::NORMAL;
    let piece_id = |token: &str| vocabulary.ids.get(token).copied().filter(is_normal);
    let pieces: Vec<_> = (0..count).filter(is_normal).collect();
    if pieces.windows(2).all(|pair| scores[pair[0]] == scores[pair[1]]) {
        return Err("its scores are all the same and do not say what is joined first".into());
    }
    let mut merges = Vec::new();
    for id in pieces {
        let token = vocabulary.tokens[id];
        let splits = token.char_indices().map(|(at, _)| token.split_at(at));
        let mut splits: Vec<_> =
            splits.filter_map(|(left, right)| Some((piece_id(left)?, piece_id(right)?))).collect();
        splits.sort_unstable();
        merges.extend(splits.into_iter().map(|split| (scores[id], split)));
    }
    // Stable: of equal scores, such as those of runs of spaces, the piece with the smaller id is first.
    merges.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let text = |id: usize| vocabulary.tokens[id].to_owned();
    Ok(merges.into_iter().map(|(_, (left, right))| (text(left), text(right))).collect())
}

// How text is split before the merges.
//
// A GGUF has only a name for that. These are the names of llama.cpp (src/llama-vocab.cpp; "whitespace" is left out), and
// the patterns of the models' own tokenizer.json where they are known: llama.cpp writes the same without `(?i:…)`,
// possessive repetition and cased letters.

struct Splitting {
    /// The names that stand for it, with spaces between them.
    names: &'static str,
    /// Each splits the pieces of the one before it.
    patterns: &'static [&'static str],
    /// A piece that is a token as a whole is that token, whatever the merges would give.
    whole_words: bool,
    /// Whether a text begins with the beginning token where the file does not say.
    begun: bool,
    /// Tokens are text in which a space is `▁` and a missing byte `<0xXX>`; otherwise each byte is a character.
    raw: bool,
}

impl Splitting {
    const fn new(names: &'static str, patterns: &'static [&'static str]) -> Splitting {
        Splitting { names, patterns, whole_words: false, begun: false, raw: false }
    }

    const fn with_whole_words(self) -> Splitting {
        Splitting { whole_words: true, ..self }
    }

    const fn begun(self) -> Splitting {
        Splitting { begun: true, ..self }
    }

    const fn raw(self) -> Splitting {
        Splitting { raw: true, ..self }
    }

    fn pre_tokenizer(&self) -> Value {
        let bytes = (!self.raw).then(|| byte_level(false, false));
        let parts: Vec<_> = self.patterns.iter().map(|pattern| split(pattern)).chain(bytes).collect();
        json!({ "type": "Sequence", "pretokenizers": parts })
    }
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const DIGITS3: &str = r"\p{N}{1,3}";
const HAN_KANA: &str = r"[一-龥぀-ゟ゠-ヿ]+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const NEWLINE: &str = r"[\r\n]";
const LINES: &str = r"[^\n]+|[\n]+";
const CJK: &str = r"[一-龥ࠀ-一가-퟿]+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const P12: &str = r"[0-9][0-9][0-9]";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_LLM: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const SPLITTINGS: [Splitting; 32] = [
    Splitting::new("default", &[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", P12]),
    Splitting::new("minicpm5", &[DIGITS3, MINICPM5]).with_whole_words(),
    Splitting::new(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        &[LLAMA3],
    )
    .with_whole_words()
    .begun(),
    Splitting::new(
        "deepseek-llm",
        &[NEWLINE, DEEPSEEK_LLM, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK, r"\p{N}+"],
    ),
    Splitting::new("deepseek-coder", &[NEWLINE, r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGIT]),
    Splitting::new("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", &[DIGITS3, HAN_KANA, DEEPSEEK3]),
    Splitting::new("spark2_5", &[DIGITS3, HAN_KANA, SPARK, DIGIT]),
    Splitting::new("youtu", &[r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", YOUTU])
        .with_whole_words(),
    Splitting::new("falcon", &[r"[\p{P}$+<=>^~|`]+", GPT2, P12]),
    Splitting::new(
        "mpt gpt-2 gpt2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert \
         jina-v1-en jina-v2-code roberta-bpe olmo jais exaone4 trillion granite-docling",
        &[GPT2],
    ),
    Splitting::new("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", &[DIGIT, GPT2]),
    Splitting::new("jais-2", &[JAIS2]),
    Splitting::new("gemma4 granite-embed-multi-311m sarvam-moe", &[LINES]).raw(),
    Splitting::new(
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan grok-2 solar-open",
        &[QWEN2],
    ),
    Splitting::new("qwen35", &[QWEN35]),
    Splitting::new("dbrx smaug-bpe chatglm-bpe", &[LLAMA3]),
    Splitting::new("poro-chat bloom gpt3-finnish", &[BLOOM]),
    Splitting::new("glm4 glm5", &[LLAMA3]).with_whole_words(),
    Splitting::new("viking", &[BLOOM, DIGIT]),
    Splitting::new("tekken", &[TEKKEN]).with_whole_words().begun(),
    Splitting::new("exaone-moe", &[EXAONE_MOE]),
    Splitting::new(
        "chameleon",
        &[
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
    )
    .begun(),
    Splitting::new("gpt-4o llama4 kanana2 talkie minimax-m2", &[GPT4O]),
    Splitting::new("granite-embed-multi-97m", &[GPT4O]).with_whole_words(),
    Splitting::new("tiny_aya cohere2moe", &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O]),
    Splitting::new("superbpe", &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
    Splitting::new("bailingmoe bailingmoe2 llada-moe", &[BAILING]),
    Splitting::new("seed-coder", &[SEED_CODER]),
    Splitting::new("kimi-k2", &[KIMI_K2]),
    Splitting::new("ufakzeka", &[UFAKZEKA]),
    Splitting::new(
        "afmoe",
        &[
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
            DEEPSEEK3,
        ],
    ),
    Splitting::new("laguna", &[LINES, QWEN2]),
];
