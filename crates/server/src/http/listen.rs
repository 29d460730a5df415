//! The listener: accepts a bounded number of connections, speaks HTTP/1.1 through hyper, and disconnects peers that are too
//! slow to send their headers or to read their response.

use std::convert::Infallible;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;

use super::Api;
use super::audit::Peer;
use super::route::RouteEffect;
use super::threads::{Ways, Whereabouts};

/// Time to send the headers of a request, counted from the response before; so also how long an idle connection is kept.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// How long a peer may read nothing of its response.
const WRITE_TIME: Duration = Duration::from_secs(30);
/// Time for the TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long to keep reading from a peer that got its response before it had sent everything. Closing at once would reset the
/// connection and lose the response.
const LINGER: Duration = Duration::from_secs(1);
/// How much to read from it in that time; the rest stays unread.
const LINGER_BYTES: usize = 8 * 1024 * 1024;
/// How much to read at a time: a lot, so that a flood costs few system calls.
const IGNORED: usize = 64 * 1024;
/// The pause after each read.
const BREATH: Duration = Duration::from_millis(5);
/// Size of a request's headers, and of the buffered part of a response.
const BUFFER: usize = 16 * 1024;
/// Socket send buffer; some systems double it.
const SEND_BUFFER: u32 = 128 * 1024;
/// Connections waiting to be accepted.
const BACKLOG: u32 = 1_024;
/// Pause after the system ran out of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How to serve connections.
pub struct Listening {
    /// How many at once; more wait to be accepted.
    pub most: usize,
    pub tls: Option<TlsAcceptor>,
    /// The threads that serve them.
    pub ways: Ways,
    /// How long responses may take after the end.
    pub drain: Duration,
}

/// Serves connections until `stop` resolves, then waits for responses in progress.
pub async fn serve(listener: TcpListener, api: Api, how: Listening, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(how.most));
    // Closed when the drain time is over.
    let (open, over) = watch::channel(());
    tokio::pin!(stop);
    loop {
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            () = &mut stop => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (api, watcher, seat, mut over) = (api.clone(), graceful.watcher(), Arc::default(), over.clone());
        let served =
            serve_one(Patient::new(stream, Arc::clone(&seat)), how.tls.clone(), (api, peer), watcher);
        let connection = async move {
            let _place = place;
            tokio::select! {
                biased;
                // Before its timers, which end with the threads that they were set on.
                _ = over.changed() => {}
                () = served => {}
            }
        };
        how.ways.clone().serve(Box::pin(connection), seat);
    }
    drop(listener);
    let _ = tokio::time::timeout(how.drain, graceful.shutdown()).await;
    drop(open);
}

async fn serve_one(stream: Patient, tls: Option<TlsAcceptor>, api: (Api, SocketAddr), watcher: Watcher) {
    let seat = stream.seat.clone();
    match tls {
        None => speak(stream, seat, api, watcher).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
                speak(stream, seat, api, watcher).await;
            }
        }
    }
}

async fn speak<S>(stream: S, seat: Arc<Whereabouts>, (api, peer): (Api, SocketAddr), watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let answer = api.clone().answer(request, seat.clone());
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    // A connection that breaks off is no fault of ours.
    let _ = watcher.watch(connection).await;
}

/// Binds an address. Connections inherit the size of the send buffer, which bounds what the system keeps for a slow reader.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that starts again does not wait for the connections of the one before.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A stream that fails when its peer reads nothing for too long.
struct Patient {
    /// `None` once moving it to other threads has failed.
    stream: Option<TcpStream>,
    seat: Arc<Whereabouts>,
    /// The threads whose runtime it's registered with.
    known_to: RouteEffect,
    /// When the pending write times out.
    deadline: Option<Pin<Box<Sleep>>>,
    /// After shutdown: when to stop reading, and how much may still come.
    linger: Option<Pin<Box<Sleep>>>,
    ignores: usize,
    /// The pause between two such reads.
    breath: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream, seat: Arc<Whereabouts>) -> Patient {
        // Small answers are not kept back to be sent together.
        let _ = stream.set_nodelay(true);
        let known_to = seat.here();
        let stream = Some(stream);
        Patient { stream, seat, known_to, deadline: None, linger: None, ignores: LINGER_BYTES, breath: None }
    }

    /// The stream, registered with the threads that serve it now. Those it came from may be too busy to pass on its wake-ups.
    fn here(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let here = self.seat.here();
        if self.known_to != here
            && let Some(stream) = self.stream.take()
        {
            self.stream = Some(TcpStream::from_std(stream.into_std()?)?);
            self.known_to = here;
        }
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Passes on the result of a write, or times out.
    fn bound<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_TIME)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.here()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.here()?.poll_write(context, bytes);
        self.bound(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.here()?.poll_write_vectored(context, slices);
        self.bound(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.here()?.poll_flush(context);
        self.bound(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(self.here()?.poll_shutdown(context))?;
        }
        self.here()?;
        let Patient { stream: Some(stream), linger, ignores, breath, .. } = &mut *self else {
            return Poll::Ready(Ok(()));
        };
        let linger = linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        if linger.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut ignored = [MaybeUninit::uninit(); IGNORED];
        while *ignores > 0 {
            if let Some(breath) = breath {
                ready!(breath.as_mut().poll(context));
            }
            let mut buffer = ReadBuf::uninit(&mut ignored);
            match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    *ignores = ignores.saturating_sub(buffer.filled().len());
                    // There may be as much of it as its peer likes, and others have better use for the time.
                    *breath = Some(Box::pin(tokio::time::sleep(BREATH)));
                }
                _ => return Poll::Ready(Ok(())),
            }
        }
        Poll::Pending
    }
}
