//! Names as parts of keys. Any text goes in and the same text comes out; no two texts give the same part, and none holds
//! what keys and members are put together with (`/`, `:`, `=`, `{`, spaces).

use flowline_core::{RunId, RunKey, Tenant};
use flowline_store::StoreError;

/// Writes a text as part of a key: letters, digits, `.`, `_` and `-` stay, every other byte becomes `%XX`. The empty text
/// is a lone `%`.
pub fn encode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    encode_into(&mut out, text);
    ascii(out)
}

pub fn encode_into(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    if text.is_empty() {
        out.push(b'%');
    }
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            out.push(byte);
        } else {
            out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// What [`encode_into`] wrote is ASCII, so that nothing is lost here.
fn ascii(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}

/// Reads a part of a key back.
pub fn decode(part: &str) -> Result<String, StoreError> {
    let damaged = || StoreError::Damaged(format!("{part:?} isn't a name in this store's encoding"));
    if part == "%" {
        return Ok(String::new());
    }
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let code = rest.get(..2).and_then(|code| std::str::from_utf8(code).ok()).ok_or_else(damaged)?;
        bytes.push(u8::from_str_radix(code, 16).map_err(|_| damaged())?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| damaged())
}

/// A run as scripts know it: `tenant/run`.
pub fn run(key: &RunKey) -> String {
    let mut out = Vec::with_capacity(48);
    encode_into(&mut out, key.tenant.as_str());
    out.push(b'/');
    encode_into(&mut out, key.run.as_str());
    ascii(out)
}

pub fn read_run(text: &str) -> Result<RunKey, StoreError> {
    let damaged = |what: String| StoreError::Damaged(format!("{text:?} isn't the address of a run: {what}"));
    let (tenant, run) = text.split_once('/').ok_or_else(|| damaged("it has no tenant".to_owned()))?;
    let tenant = Tenant::new(&decode(tenant)?).map_err(|error| damaged(error.to_string()))?;
    let run = RunId::new(&decode(run)?).map_err(|error| damaged(error.to_string()))?;
    Ok(RunKey::new(tenant, run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back_and_none_collide() {
        let texts =
            ["", "%", "%25", "a/b", "a:b", "a=b", "{x}", " ", "\0", "é", "a.b-c_d", "\u{202e}", "a%2Fb"];
        let parts: Vec<String> = texts.iter().map(|text| encode(text)).collect();
        for (i, part) in parts.iter().enumerate() {
            assert_eq!(decode(part).unwrap(), texts[i]);
            assert!(!part.is_empty() && !part.contains([' ', '/', ':', '=', '{', '}', '\n']), "{part:?}");
            assert!(!parts[..i].contains(part));
        }
        for bad in ["%2", "%zz", "a%"] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_run_comes_back() {
        let key = RunKey::new(Tenant::new("a.b").unwrap(), RunId::new("r-1").unwrap());
        assert_eq!(run(&key), "a.b/r-1");
        assert_eq!(read_run(&run(&key)).unwrap(), key);
        assert!(read_run("nothing").is_err());
    }
}
