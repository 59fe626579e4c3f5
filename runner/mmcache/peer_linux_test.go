package mmcache

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// An engineEnd speaks the engine's side of the protocol in Go.
type engineEnd struct {
	c     *net.UnixConn
	token token // of the request it serves
}

// identified completes an attachment's space.
func identified(a *Attachment) {
	a.known = true
	close(a.decided)
}

func dialEngine(t testing.TB, s *Server, sp Namespace) *engineEnd {
	t.Helper()
	a, err := s.listen("m", sp, identified)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Detach)
	return a.dial(t)
}

func (a *Attachment) dial(t testing.TB) *engineEnd {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: a.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &engineEnd{c: c}
}

// rawRequest returns the bytes of a request for one medium.
func rawRequest(o op, it item, waitMS uint32) []byte {
	b := make([]byte, messageHeaderLen+itemLen)
	binary.LittleEndian.PutUint32(b, wireMagic)
	b[4], b[5] = byte(o), 1
	binary.LittleEndian.PutUint16(b[6:], uint16(len(it.layout.Tokens)))
	binary.LittleEndian.PutUint32(b[8:], waitMS)
	binary.LittleEndian.PutUint32(b[12:], it.layout.Width)
	p := b[messageHeaderLen:]
	p[0] = byte(it.media.Kind)
	if it.partial {
		p[1] = flagPartial
	}
	binary.LittleEndian.PutUint16(p[2:], uint16(len(it.layout.Tokens)))
	binary.LittleEndian.PutUint32(p[4:], it.media.A)
	binary.LittleEndian.PutUint32(p[8:], it.media.B)
	binary.LittleEndian.PutUint32(p[12:], it.encodeUS)
	binary.LittleEndian.PutUint64(p[16:], it.offset)
	binary.LittleEndian.PutUint64(p[24:], it.bytes)
	copy(p[32:], it.ident[:])
	for _, t := range it.layout.Tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return b
}

func (e *engineEnd) send(t testing.TB, o op, it item, waitMS uint32, data []byte) {
	t.Helper()
	b := rawRequest(o, it, waitMS)
	copy(b[16:], e.token[:])
	e.raw(t, b, data)
}

// raw sends any bytes, with a file of data unless data is nil.
func (e *engineEnd) raw(t testing.TB, message, data []byte) {
	t.Helper()
	if len(message) == 0 {
		return
	}
	var oob []byte
	if data != nil {
		f, err := sealedFile([][]byte{data}, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		oob = syscall.UnixRights(int(f.Fd()))
	}
	if _, _, err := e.c.WriteMsgUnix(message, oob, nil); err != nil {
		t.Fatal(err)
	}
}

// receive reads the response for one medium and its floats.
func (e *engineEnd) receive(t testing.TB, want Layout) itemResult {
	t.Helper()
	_ = e.c.SetReadDeadline(time.Now().Add(30 * time.Second))
	b := make([]byte, replyHeaderLen+resultLen)
	oob := make([]byte, syscall.CmsgSpace(4))
	n, oobn, _, _, err := e.c.ReadMsgUnix(b, oob)
	if err == nil && n < len(b) {
		_, err = io.ReadFull(e.c, b[n:])
	}
	if err != nil {
		t.Fatal(err)
	}
	p := b[replyHeaderLen:]
	a := itemResult{status: itemStatus(p[0])}
	copy(a.ident[:], p[24:])
	if oobn > 0 {
		m, err := syscall.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			t.Fatal(err)
		}
		fds, err := syscall.ParseUnixRights(&m[0])
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fds[0]), "floats")
		defer func() { _ = f.Close() }()
		a.entry = &Entry{Layout: want, Floats: make([]byte, binary.LittleEndian.Uint64(p[16:]))}
		if _, err := f.ReadAt(a.entry.Floats, int64(binary.LittleEndian.Uint64(p[8:]))); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func (e *engineEnd) lookup(t testing.TB, m Media, raw []byte, l Layout) itemResult {
	t.Helper()
	e.send(t, opLookup, item{media: m, layout: l, bytes: uint64(len(raw))}, 0, raw)
	return e.receive(t, l)
}

func (e *engineEnd) acquire(t testing.TB, m Media, id Ident, l Layout, waitMS uint32) itemResult {
	t.Helper()
	e.send(t, opAcquire, item{media: m, layout: l, ident: id}, waitMS, nil)
	return e.receive(t, l)
}

// insert performs a look-up that misses, takes the lead, and stores the result.
func (e *engineEnd) insert(t testing.TB, m Media, raw []byte, v *Entry) Ident {
	t.Helper()
	a := e.lookup(t, m, raw, v.Layout)
	if a.status != statusMiss {
		t.Fatalf("look-up of a new medium: %d", a.status)
	}
	if got := e.acquire(t, m, a.ident, v.Layout, 1000); got.status != statusMiss {
		t.Fatalf("acquire of a new medium: %d", got.status)
	}
	e.send(t, opStore, item{media: m, layout: v.Layout, ident: a.ident, bytes: uint64(len(v.Floats)), encodeUS: 1000}, 0, v.Floats)
	return a.ident
}
