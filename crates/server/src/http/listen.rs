//! The listener: connections in, bounded in number and in patience. hyper speaks HTTP/1.1; whoever is slow to send its
//! headers or to take its answer is cut off.

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

/// From the moment that a connection waits for a request until its headers are whole; so also how long an idle one is kept.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// How long an answer may wait for its reader to take some of it.
const WRITE_TIME: Duration = Duration::from_secs(30);
/// How long a peer may take to agree on TLS.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long a peer that was answered before it had said all is listened to: closed at once, the connection would be reset,
/// and the answer with it.
const LINGER: Duration = Duration::from_secs(1);
/// How much of what it says is taken in the meantime: beyond that it waits in vain, which costs nothing here.
const LINGER_BYTES: usize = 8 * 1024 * 1024;
/// How much of that at a time: many, so that whoever floods costs few calls of the system.
const IGNORED: usize = 64 * 1024;
/// The pause after that.
const BREATH: Duration = Duration::from_millis(5);
/// Headers of a request in all, and what of an answer waits to be sent.
const BUFFER: usize = 16 * 1024;
/// What the system keeps of an answer for its reader; some systems take it twice.
const SEND_BUFFER: u32 = 128 * 1024;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1_024;
/// Pause after the system refused a connection, for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How connections are taken.
pub struct Listening {
    /// How many at once; more wait to be accepted.
    pub most: usize,
    pub tls: Option<TlsAcceptor>,
    /// The threads that serve them.
    pub ways: Ways,
    /// How long responses may take after the end.
    pub drain: Duration,
}

/// Serves connections until `stop` is done, then lets those that are answering finish.
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

/// Binds an address. What connections inherit from it bounds what the system keeps for one that does not read.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that starts again does not wait for the connections of the one before.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A stream that is given up when its peer takes nothing for too long.
struct Patient {
    /// None once it could not be taken to other threads.
    stream: Option<TcpStream>,
    seat: Arc<Whereabouts>,
    /// The threads that are told when it is ready.
    known_to: RouteEffect,
    /// When the write that waits is given up.
    deadline: Option<Pin<Box<Sleep>>>,
    /// When a peer that was told of the end is listened to no longer, and how much it may still say.
    linger: Option<Pin<Box<Sleep>>>,
    ignores: usize,
    /// Until when it is not listened to in between.
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

    /// The stream, known to the threads that serve it now: those that it came from may be too busy to tell them of it.
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

    /// Passes on what a write came to, or that it has waited too long.
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
