#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    weft_fuzz::transfer_tree::apply(data, folder.path());
});
