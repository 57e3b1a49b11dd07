//! The end of a log.

use crate::cluster::client::call;
use anyhow::Result;
use futures::{AsyncBufRead, AsyncBufReadExt};
use http::Request;
use kube::Client;
use std::io;
use std::pin::pin;

/// The most bytes of a log.
const LOG: usize = 1 << 20;

/// The last [`LOG`] bytes of the answer to `path`, in whole lines, and the number of bytes before.
pub(super) async fn read(client: &Client, path: &str) -> Result<(String, usize)> {
    let request = Request::get(path).body(Vec::new())?;
    let read = async {
        let answer = client.request_stream(request).await?;
        end(answer, LOG).await.map_err(kube::Error::ReadEvents)
    };
    Ok(call(read).await?)
}

/// The last `most` bytes of `log`, in whole lines, and the number of bytes before.
async fn end(log: impl AsyncBufRead, most: usize) -> io::Result<(String, usize)> {
    let mut log = pin!(log);
    let (mut kept, mut before) = (Vec::new(), 0);
    loop {
        let bytes = log.fill_buf().await?;
        if bytes.is_empty() {
            break;
        }
        let length = bytes.len();
        kept.extend_from_slice(bytes);
        log.consume_unpin(length);
        if kept.len() > 2 * most {
            before += kept.drain(..kept.len() - most).len();
        }
    }
    before += kept.drain(..kept.len().saturating_sub(most)).len();
    if before > 0 {
        let line = kept.iter().position(|byte| *byte == b'\n').map_or(kept.len(), |end| end + 1);
        before += kept.drain(..line).len();
    }
    Ok((String::from_utf8_lossy(&kept).into_owned(), before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_lines_are_kept_whole() {
        let log: String = (0..1000).map(|number| format!("line {number}\n")).collect();
        let (kept, before) = end(log.as_bytes(), 100).await.expect("it is read");
        assert!(kept.starts_with("line 9") && kept.ends_with("line 999\n") && kept.len() <= 100, "{kept}");
        assert_eq!(before + kept.len(), log.len());
        assert_eq!(end(&b"a\nb\n"[..], 100).await.expect("it is read"), ("a\nb\n".to_owned(), 0));
    }
}
