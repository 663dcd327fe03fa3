//! Reading Protocol Buffers, as much as [`super::record`] needs: varints and fields with a length.

use super::log::Malformed;

pub(super) use crate::sinks::proto::Message;

/// The value of a field that was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Int(i64),
    Bytes(&'a [u8]),
    /// Four or eight bytes: nothing that is read here.
    Fixed,
}

impl<'a> Value<'a> {
    pub(super) fn int(self) -> Result<i64, Malformed> {
        match self {
            Self::Int(value) => Ok(value),
            _ => Err(Malformed("a field that is no number")),
        }
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed("a field that is no text")),
        }
    }

    pub(super) fn text(self) -> Result<String, Malformed> {
        let text = String::from_utf8(self.bytes()?.to_vec());
        text.map_err(|_| Malformed("a text that is not UTF-8"))
    }
}

/// Hands every field of a message to `take`, in order.
pub(super) fn read<'a>(
    mut bytes: &'a [u8],
    mut take: impl FnMut(u32, Value<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Value::Int(varint(&mut bytes)? as i64),
            1 => split(&mut bytes, 8).map(|_| Value::Fixed)?,
            2 => {
                let length = varint(&mut bytes)?;
                let length = usize::try_from(length).map_err(|_| Malformed("a length"))?;
                Value::Bytes(split(&mut bytes, length)?)
            }
            5 => split(&mut bytes, 4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed("an unknown wire type")),
        };
        let field = u32::try_from(tag >> 3).map_err(|_| Malformed("a field number"))?;
        take(field, value)?;
    }
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = split(bytes, 1)?[0];
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(value);
        }
    }
    Err(Malformed("a number without end"))
}

fn split<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (head, tail) = bytes
        .split_at_checked(length)
        .ok_or(Malformed("a field that runs past its message"))?;
    *bytes = tail;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back_and_defaults_take_no_space() {
        let mut message = Message::default();
        message.int(1, 0);
        message.text(2, "");
        message.int(1, 300);
        message.int(3, -1);
        message.message(200, |inner| inner.text(1, "id"));
        let bytes = message.into_bytes();
        // As protoc writes them.
        assert_eq!(bytes[..3], [0x08, 0xac, 0x02]);
        assert_eq!(bytes[14..], [0xc2, 0x0c, 0x04, 0x0a, 0x02, b'i', b'd']);
        let mut found = Vec::new();
        read(&bytes, |field, value| {
            found.push((field, value));
            Ok(())
        })
        .unwrap();
        let inner: &[u8] = &[0x0a, 2, b'i', b'd'];
        assert_eq!(
            found,
            [
                (1, Value::Int(300)),
                (3, Value::Int(-1)),
                (200, Value::Bytes(inner))
            ]
        );
    }

    #[test]
    fn bytes_that_are_no_message_are_an_error_and_no_panic() {
        for bytes in [
            &[0x08][..],
            &[0x0a, 5, b'x'],
            &[0x80; 20],
            &[0x0b],
            &[0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
        ] {
            assert!(read(bytes, |_, _| Ok(())).is_err(), "{bytes:?}");
        }
    }
}
