//! The tokenizer: the same everywhere, equal to Hugging Face's, kept safely.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;

use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;
use tokenizers::NormalizedString;
use tt_data::{DataConfig, DataError, Dataset, Row, Source, Tokenizer, TokenizerConfig, Words};

fn config(vocab_size: usize) -> TokenizerConfig {
    TokenizerConfig {
        vocab_size,
        ..TokenizerConfig::default()
    }
}

fn open(config: &TokenizerConfig, cache: Option<&Path>) -> Result<Tokenizer, DataError> {
    let dataset = Dataset::open(&DataConfig::default()).unwrap();
    Tokenizer::open(config, dataset.train.as_ref(), cache)
}

fn loaded(path: &Path, eos_token: Option<&str>) -> Result<Tokenizer, String> {
    Tokenizer::load(path, eos_token).map_err(|error| error.to_string())
}

fn cached_files(cache: &TempDir) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in fs::read_dir(cache.path().join("tokenizers")).unwrap() {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            files.push(file.unwrap().path());
        }
    }
    files.sort();
    files
}

#[test]
fn training_gives_the_same_bytes_every_time() {
    let first = open(&config(600), None).unwrap();
    assert_eq!(first.vocab_size(), 600);
    let again = thread::scope(|scope| {
        let trainings: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| open(&config(600), None)))
            .collect();
        trainings
            .into_iter()
            .map(|t| t.join().unwrap().unwrap())
            .collect::<Vec<_>>()
    });
    for tokenizer in again {
        assert_eq!(tokenizer.files(), first.files());
    }
}

#[test]
fn training_gives_the_same_merges_in_every_build() {
    struct Rhyme;
    impl Source for Rhyme {
        fn num_rows(&self) -> Option<u64> {
            Some(1)
        }
        fn read(&self, _: u64, row: &mut Row) -> Result<(), DataError> {
            row.text_mut("text")
                .push_str("she sells sea shells by the sea shore");
            Ok(())
        }
    }
    let tokenizer = Tokenizer::open(&config(400), &Rhyme, None).unwrap();
    let json: Value = serde_json::from_slice(&tokenizer.files()["tokenizer.json"]).unwrap();
    // Counted by hand: " s" comes 5 times, then "he" and " se" 3 times, the others twice; of equals
    // the pair with lower ids is first.
    let expected = [
        ["Ġ", "s"],
        ["h", "e"],
        ["Ġs", "e"],
        ["l", "l"],
        ["Ġse", "a"],
        ["ll", "s"],
    ];
    assert_eq!(json["model"]["merges"], serde_json::json!(expected));
}

#[test]
fn the_cache_is_written_once_and_read_after() {
    let cache = tempfile::tempdir().unwrap();
    let first = open(&config(300), Some(cache.path())).unwrap();
    let files = cached_files(&cache);
    let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["tokenizer.json", "tokenizer_config.json"]);
    let written = fs::metadata(&files[0]).unwrap().modified().unwrap();
    let second = open(&config(300), Some(cache.path())).unwrap();
    assert_eq!(second.files(), first.files());
    assert_eq!(
        fs::metadata(&files[0]).unwrap().modified().unwrap(),
        written
    );

    open(&config(301), Some(cache.path())).unwrap();
    assert_eq!(cached_files(&cache).len(), 4);
}

#[test]
fn a_broken_cache_is_replaced() {
    let cache = tempfile::tempdir().unwrap();
    let first = open(&config(300), Some(cache.path())).unwrap();
    let path = &cached_files(&cache)[0];
    fs::write(path, "{ \"half\": ").unwrap();
    let second = open(&config(300), Some(cache.path())).unwrap();
    assert_eq!(second.files(), first.files());
    assert_eq!(&fs::read(path).unwrap(), &first.files()["tokenizer.json"]);
}

#[test]
fn many_may_train_into_one_cache_at_once() {
    let cache = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| open(&config(300), Some(cache.path())).unwrap());
        }
    });
    assert_eq!(cached_files(&cache).len(), 2); // nothing temporary is left
}

#[test]
fn a_cache_that_cannot_be_written_does_not_stop_the_run() {
    let cache = tempfile::tempdir().unwrap();
    fs::write(cache.path().join("tokenizers"), "a file is in the way").unwrap();
    assert_eq!(
        open(&config(300), Some(cache.path())).unwrap().vocab_size(),
        300
    );
}

static TRAINED: LazyLock<Tokenizer> = LazyLock::new(|| open(&config(1024), None).unwrap());

proptest! {
    #[test]
    fn tokens_are_those_of_hugging_face(
        text in r"((Once| upon|a|the|Pip's|12| \+|kite|e\u{301}|\u{3a9}\u{2126})?[ \n.,!\x22']{0,2}|\PC{0,3}|<\|endoftext\|>){0,20}"
    ) {
        let expected = TRAINED.as_hf().encode_fast(text.as_str(), false).unwrap();
        prop_assert_eq!(TRAINED.encode(&text).unwrap(), expected.get_ids());
    }

    #[test]
    fn decoding_gives_the_text_back_composed(text in r"([^<]|[aeou][\u{300}-\u{30c}]){0,40}") {
        let ids = TRAINED.encode(&text).unwrap();
        let composed = NormalizedString::from(text).nfc().get().to_owned();
        prop_assert_eq!(TRAINED.decode(&ids).unwrap(), composed);
    }
}

#[test]
fn decomposed_text_has_the_tokens_of_composed() {
    let composed = TRAINED.encode("caf\u{e9}").unwrap();
    assert_eq!(TRAINED.encode("cafe\u{301}").unwrap(), composed);
    assert_eq!(TRAINED.decode(&composed).unwrap(), "caf\u{e9}");
}

#[test]
fn a_word_of_a_megabyte_is_encoded() {
    let text = "x".repeat(1 << 20);
    let ids = TRAINED.encode(&text).unwrap();
    assert_eq!(TRAINED.decode(&ids).unwrap(), text);
}

#[test]
fn common_words_of_the_stories_are_single_tokens() {
    for word in [" kite", " the", " Clara", " because", "Once", "7"] {
        assert_eq!(TRAINED.encode(word).unwrap().len(), 1, "{word}");
    }
}

#[test]
fn the_end_of_text_is_token_0_and_fills_rows() {
    assert_eq!((TRAINED.eos_id(), TRAINED.pad_id()), (0, 0));
    assert_eq!(TRAINED.encode("a<|endoftext|>").unwrap().last(), Some(&0));
    assert_eq!(TRAINED.decode(&[0]).unwrap(), "");
}

#[test]
fn a_folder_of_files_is_loaded_with_what_stands_beside() {
    let folder = tempfile::tempdir().unwrap();
    TRAINED.save(folder.path()).unwrap();
    fs::write(folder.path().join("chat_template.jinja"), "{{ x }}").unwrap();
    let tokenizer = loaded(folder.path(), None).unwrap();
    assert_eq!(tokenizer.files()["chat_template.jinja"], b"{{ x }}");
    assert_eq!(
        tokenizer.files()["tokenizer.json"],
        TRAINED.files()["tokenizer.json"]
    );
    let by_file = loaded(&folder.path().join("tokenizer.json"), None).unwrap();
    assert_eq!(by_file.files(), tokenizer.files());
}

#[test]
fn a_tokenizer_from_elsewhere_names_its_special_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let json = String::from_utf8(TRAINED.files()["tokenizer.json"].clone()).unwrap();
    let json = json.replace("<|endoftext|>", "</s>");
    fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    let shown = folder.path().join("tokenizer.json").display().to_string();

    let message = loaded(folder.path(), None).err().unwrap();
    assert_eq!(
        message,
        format!(
            "tokenizer {shown} names no end-of-text token; set `data.tokenizer.eos_token` to the one it has"
        )
    );
    let message = loaded(folder.path(), Some("<eos>")).err().unwrap();
    assert_eq!(message, format!("tokenizer {shown}: has no token `<eos>`"));
    assert_eq!(loaded(folder.path(), Some("</s>")).unwrap().eos_id(), 0);

    let side = r#"{"eos_token": {"content": "</s>", "lstrip": false}, "pad_token": "!"}"#;
    fs::write(folder.path().join("tokenizer_config.json"), side).unwrap();
    let tokenizer = loaded(folder.path(), None).unwrap();
    assert_eq!(tokenizer.eos_id(), 0);
    assert_eq!(
        tokenizer.pad_id(),
        tokenizer.as_hf().token_to_id("!").unwrap()
    );
}

#[test]
fn a_tokenizer_that_is_missing_or_broken_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let message = loaded(folder.path(), None).err().unwrap();
    assert_eq!(
        message,
        format!("`data.tokenizer.path`: no such file: {}", path.display())
    );
    fs::write(&path, "[]").unwrap();
    let message = loaded(folder.path(), None).err().unwrap();
    assert!(
        message.starts_with(&format!("tokenizer {}: ", path.display())),
        "{message}"
    );

    let message = open(&config(256), None).err().unwrap().to_string();
    assert!(
        message.starts_with("`data.tokenizer.vocab_size`: 256 is under 257"),
        "{message}"
    );
}

/// What each of these tokenizers makes of a long text cut up is what it makes of the whole.
#[test]
fn a_long_text_in_parts_gives_the_tokens_of_the_whole() {
    let trained = open(&config(600), None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let changed = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut json: Value = serde_json::from_slice(&trained.files()["tokenizer.json"]).unwrap();
        change(&mut json);
        let path = folder.path().join(name);
        fs::write(&path, json.to_string()).unwrap();
        Tokenizer::load(&path, None).unwrap()
    };
    let byte_level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true,
    });
    let gpt2 = changed("gpt2.json", &|json| {
        json["pre_tokenizer"] = byte_level.clone()
    });
    let prefixed = changed("prefixed.json", &|json| {
        json["pre_tokenizer"] = byte_level.clone();
        json["pre_tokenizer"]["add_prefix_space"] = true.into();
    });
    // As of SentencePiece: a blank before the text, and no pieces before merging.
    let pieces = changed("pieces.json", &|json| {
        let replace = |from: &str, to: &str| serde_json::json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        json["normalizer"] = serde_json::json!({
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "Ġ"}, replace(" ", "Ġ"), replace("\n", "Ċ")],
        });
        json["pre_tokenizer"] = Value::Null;
    });
    let dataset = Dataset::open(&DataConfig::default()).unwrap();
    let mut row = Row::default();
    let mut book = String::new();
    for index in 0..400 {
        dataset.train.read(index, &mut row).unwrap();
        book.push_str(row.text("text").unwrap());
        book.push_str(["\n", "\n\n", "  \n", "\r\n", " ", "e\u{301}\n"][index as usize % 6]);
    }
    let one_line = book.replace(['\n', '\r'], " ");
    for (name, tokenizer, text) in [
        ("trained", &trained, &book),
        ("trained, one line", &trained, &one_line),
        ("gpt2", &gpt2, &book),
        ("prefixed", &prefixed, &one_line),
        ("pieces", &pieces, &one_line),
    ] {
        let (mut rest, mut ids, mut parts) = (text.as_str(), Vec::new(), 1);
        while let Some((end, start)) = tokenizer.cut(rest, 1000).unwrap() {
            assert!((500..=1000).contains(&end), "{name}: {end}");
            tokenizer.encode_into(&rest[..end], &mut ids).unwrap();
            rest = &rest[start..];
            parts += 1;
        }
        tokenizer.encode_into(rest, &mut ids).unwrap();
        assert!(
            parts > text.len() / 1500,
            "{name}: {parts} parts of {}",
            text.len()
        );
        assert!(ids == tokenizer.encode(text).unwrap(), "{name}");
    }
    // Where there is no word, there is no place to cut.
    assert_eq!(trained.cut(&"-".repeat(9000), 1000).unwrap(), None);
}

/// Llama's: `<s>` before each text.
fn with_start(folder: &TempDir) -> Tokenizer {
    let trained = open(&config(300), None).unwrap();
    let mut json: Value = serde_json::from_slice(&trained.files()["tokenizer.json"]).unwrap();
    let start = serde_json::json!({"id": 300, "content": "<s>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true});
    json["added_tokens"].as_array_mut().unwrap().push(start);
    json["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [300], "tokens": ["<s>"]}},
    });
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, json.to_string()).unwrap();
    Tokenizer::load(&path, None).unwrap()
}

#[test]
fn what_the_post_processor_puts_before_a_text_begins_documents_and_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = with_start(&folder);
    assert_eq!(tokenizer.document_start(), [300]);
    let by_hand = tokenizer.as_hf().encode("Pip ran", true).unwrap();
    assert_eq!(
        tokenizer.encode_prompt("Pip ran").unwrap(),
        by_hand.get_ids()
    );
    // A text may bring it.
    let brought = tokenizer.encode_prompt("<s>Pip ran").unwrap();
    assert_eq!(brought, by_hand.get_ids());
    let without = tokenizer.without_document_start();
    assert_eq!(
        without.encode_prompt("Pip ran").unwrap(),
        by_hand.get_ids()[1..]
    );
    let trained = open(&config(300), None).unwrap();
    assert!(trained.document_start().is_empty());
}

#[test]
fn a_continuation_is_decoded_with_what_is_before_it() {
    // Blanks belong to the words after them, and are left out at the beginning of a text.
    let folder = tempfile::tempdir().unwrap();
    let trained = open(&config(600), None).unwrap();
    let mut json: Value = serde_json::from_slice(&trained.files()["tokenizer.json"]).unwrap();
    json["decoder"] = serde_json::json!({
        "type": "Sequence",
        "decoders": [json["decoder"].clone(), {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    });
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, json.to_string()).unwrap();
    let stripping = Tokenizer::load(&path, None).unwrap();
    for tokenizer in [&trained, &stripping] {
        for text in ["The badger said yes", "größer als 日本 🦡!", " a  b "] {
            let ids = tokenizer.encode(text).unwrap();
            let whole = tokenizer.decode(&ids).unwrap();
            for at in 0..=ids.len() {
                let (prompt, rest) = ids.split_at(at);
                let before = tokenizer.decode(prompt).unwrap();
                let before = before.trim_end_matches('\u{fffd}');
                let text = tokenizer.decode_continuation(prompt, rest).unwrap();
                assert_eq!(format!("{before}{text}"), whole, "cut at {at}");
            }
        }
    }
}

fn vocab_and_merges(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/vocab_merges")
        .join(name)
}

/// `transformers` has made the ids from the same files: `make.py` beside them.
#[test]
fn golden_vocab_and_merges_give_the_tokens_of_transformers() {
    for name in ["qwen2", "gpt2", "gpt2_legacy"] {
        let folder = vocab_and_merges(name);
        let tokenizer = loaded(&folder, None).unwrap();
        let expected = fs::read_to_string(folder.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let id = |key: &str| expected[key].as_u64().map(|id| id as u32);
        assert_eq!(Some(tokenizer.eos_id()), id("eos_id"), "{name}");
        assert_eq!(
            tokenizer.pad_id(),
            id("pad_id").or(id("eos_id")).unwrap(),
            "{name}"
        );
        let strings = expected["strings"].as_array().unwrap();
        assert!(strings.len() > 50);
        for it in strings {
            let text = it["text"].as_str().unwrap();
            let ids = tokenizer.encode(text).unwrap();
            let ids_of = |key: &str| serde_json::from_value::<Vec<u32>>(it[key].clone()).unwrap();
            assert_eq!(ids, ids_of("ids"), "{name}: {text:?}");
            let whole = [tokenizer.document_start(), &ids].concat();
            assert_eq!(whole, ids_of("with_special"), "{name}: {text:?}");
            let decoded = it["decoded"].as_str().unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), decoded, "{name}: {text:?}");
        }
        // What a checkpoint holds is a tokenizer.json.
        let saved = tempfile::tempdir().unwrap();
        tokenizer.save(saved.path()).unwrap();
        assert!(loaded(saved.path(), None).unwrap().is_same(&tokenizer));
    }
}

fn vocab_txt(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/vocab_txt")
        .join(name)
}

/// `transformers` has made the ids from the same files: `make.py` beside them.
#[test]
fn golden_vocab_txt_gives_the_tokens_of_transformers() {
    for name in ["uncased", "cased"] {
        let folder = vocab_txt(name);
        let tokenizer = loaded(&folder, None).unwrap();
        let expected = fs::read_to_string(folder.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        assert_eq!(expected["sep_id"], tokenizer.eos_id(), "{name}");
        assert_eq!(expected["pad_id"], tokenizer.pad_id(), "{name}");
        assert_eq!(expected["mask_id"], tokenizer.mask_id().unwrap(), "{name}");
        let strings = expected["strings"].as_array().unwrap();
        assert!(strings.len() > 20);
        for it in strings {
            let text = it["text"].as_str().unwrap();
            let ids = tokenizer.encode(text).unwrap();
            let ids_of = |key: &str| serde_json::from_value::<Vec<u32>>(it[key].clone()).unwrap();
            assert_eq!(ids, ids_of("ids"), "{name}: {text:?}");
            let whole = [tokenizer.document_start(), &ids, &[tokenizer.eos_id()]].concat();
            assert_eq!(whole, ids_of("with_special"), "{name}: {text:?}");
        }
        // What a checkpoint holds is a tokenizer.json.
        let saved = tempfile::tempdir().unwrap();
        tokenizer.save(saved.path()).unwrap();
        assert!(loaded(saved.path(), None).unwrap().is_same(&tokenizer));
        assert_eq!(
            loaded(saved.path(), None).unwrap().mask_id(),
            tokenizer.mask_id()
        );
    }
}

/// Others keep other things in a file of that name.
#[test]
fn a_vocab_txt_that_nothing_says_is_berts_is_refused_with_the_way_out() {
    let refused = |config: Option<&str>, vocab: &str| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("vocab.txt"), vocab).unwrap();
        if let Some(config) = config {
            fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        }
        loaded(folder.path(), None).err().expect("refused")
    };
    let vocab = fs::read_to_string(vocab_txt("cased").join("vocab.txt")).unwrap();
    let message = refused(None, &vocab);
    assert!(
        message.contains("\"tokenizer_class\": \"BertTokenizer\""),
        "{message}"
    );
    let message = refused(Some(r#"{"tokenizer_class": "PhobertTokenizer"}"#), &vocab);
    assert!(message.contains("PhobertTokenizer"), "{message}");
    let message = refused(
        Some(r#"{"tokenizer_class": "BertTokenizerFast"}"#),
        "a\n[UNK]\n",
    );
    assert!(message.contains("no `[CLS]`"), "{message}");
}

/// By the marks of each kind: `##`, a blank before a word in bytes, or `\u{2581}`.
#[test]
fn words_are_told_by_the_marks_of_the_tokenizer() {
    #[track_caller]
    fn words(tokenizer: &Tokenizer, text: &str) -> Vec<usize> {
        let words = Words::of(tokenizer);
        let ids = tokenizer.encode(text).unwrap();
        let mut lengths = vec![1];
        for pair in ids.windows(2) {
            match words.goes_on(pair[0], pair[1]) {
                true => *lengths.last_mut().unwrap() += 1,
                false => lengths.push(1),
            }
        }
        assert_eq!(lengths.iter().sum::<usize>(), ids.len());
        lengths
    }
    let bert = loaded(&vocab_txt("uncased"), None).unwrap();
    let split = |token: &str| bert.encode(token).unwrap().len();
    let (kites, forbearing) = (split("kites"), split("forbearing"));
    assert!(forbearing > 1);
    assert_eq!(
        words(&bert, "kites, forbearing 'kites'"),
        [kites, 1, forbearing, 1, kites, 1]
    );

    // Bytes: no merges, so that every letter is a token.
    let bytes = Tokenizer::bytes().unwrap();
    assert_eq!(
        words(&bytes, "ab, don't \n12 né"),
        [2, 1, 1, 3, 1, 1, 1, 1, 2, 1, 3]
    );

    let words_of = Words::of(&bert);
    let special = [0, 1, 2, 3, 4].map(|id| words_of.is_special(id));
    assert_eq!(special, [true; 5]);
    assert_eq!(words_of.ordinary().len(), bert.vocab_size() - 5);
}

#[test]
fn a_trained_tokenizer_is_given_a_mask_where_one_is_asked_for() {
    let dataset = Dataset::open(&DataConfig::default()).unwrap();
    let train = dataset.train.as_ref();
    let masked = Tokenizer::open_with(&config(500), train, None, true).unwrap();
    let plain = open(&config(499), None).unwrap();
    assert_eq!((masked.vocab_size(), masked.mask_id()), (500, Some(499)));
    assert_eq!(plain.mask_id(), None);
    let text = "A little bear named Clara.";
    assert_eq!(masked.encode(text).unwrap(), plain.encode(text).unwrap());
    // The blank before a hidden word goes with the word, as it does in training.
    let with_mask = masked.encode("A little <mask> named Clara.").unwrap();
    let [before, after] = ["A little", " named Clara."].map(|part| masked.encode(part).unwrap());
    assert_eq!(with_mask, [before, vec![499], after].concat());
    let small = Tokenizer::open_with(&config(257), train, None, true);
    let message = small.err().expect("refused").to_string();
    assert!(message.contains("257 is under 258"), "{message}");
}

#[test]
fn files_that_do_not_say_the_whole_tokenizer_are_refused_with_the_way_out() {
    let refused = |change: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        for file in fs::read_dir(vocab_and_merges("qwen2")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        change(folder.path());
        let message = loaded(folder.path(), None).err().unwrap();
        let shown = folder.path().display().to_string();
        assert!(message.contains(&shown), "{message}");
        message
    };
    let write = |name: &'static str, text: &'static str| {
        move |folder: &Path| fs::write(folder.join(name), text).unwrap()
    };
    let to_convert = "AutoTokenizer.from_pretrained(";

    let message = refused(&write(
        "tokenizer_config.json",
        r#"{"tokenizer_class": "RobertaTokenizer"}"#,
    ));
    assert!(
        message.contains("`RobertaTokenizer`") && message.contains(to_convert),
        "{message}"
    );
    let message = refused(&write("tokenizer_config.json", "{}"));
    assert!(message.contains("is not named"), "{message}");

    let message = refused(&|folder| {
        fs::remove_file(folder.join("vocab.json")).unwrap();
        fs::write(folder.join("tokenizer.model"), "x").unwrap();
    });
    assert!(
        message.contains("SentencePiece") && message.contains(to_convert),
        "{message}"
    );

    let message = refused(&write("merges.txt", "#version: 0.2\na b\na b c\n"));
    assert!(message.contains("merges.txt: line 3"), "{message}");
    let message = refused(&write("merges.txt", "a zzz\n"));
    assert!(message.contains("zzz"), "{message}");
    let message = refused(&write("vocab.json", "{\"a\": 0, "));
    assert!(message.contains("vocab.json"), "{message}");
    // The vocabulary of a smaller tokenizer, whose added tokens are then given other numbers.
    let message = refused(&|folder| {
        let path = folder.join("vocab.json");
        let mut vocab: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        vocab
            .as_object_mut()
            .unwrap()
            .retain(|_, id| id.as_u64() < Some(400));
        fs::write(path, vocab.to_string()).unwrap();
    });
    assert!(
        message.contains("the added token `<|endoftext|>` has id"),
        "{message}"
    );
}
