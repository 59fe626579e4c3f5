package mmcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Messages of PROTOCOL.md.
const (
	wireMagic        = 0x334d4d52
	messageHeaderLen = 32
	replyHeaderLen   = 16
	itemLen          = 64
	resultLen        = 56
	maxMedia         = 64
	replyBit         = 0x80
	floatAlign       = 64 // alignment of each medium's floats in a reply
)

type op uint8

const (
	opLookup  op = 1
	opAcquire op = 2
	opStore   op = 3
	opAbandon op = 4
)

const flagPartial = 1

type itemStatus uint8

const (
	statusMiss itemStatus = 0 // in reply to an acquire: the session leads; others wait for the result
	statusHit  itemStatus = 1
	statusBusy itemStatus = 2 // only in reply to an acquire: encode it, but only for this engine
)

var errProtocol = errors.New("mmcache: malformed message")

type item struct {
	media         Media
	partial       bool
	layout        Layout
	encodeUS      uint32
	offset, bytes uint64
	ident         Ident
}

type message struct {
	op     op
	waitMS uint32
	token  token
	items  []item
	file   *os.File // descriptor received with the message, or nil; the receiver closes it
}

// readMessage reads one message. It returns io.EOF if the engine closed the connection between messages.
func readMessage(c *net.UnixConn) (*message, error) {
	var h [messageHeaderLen]byte
	m := &message{}
	if err := m.fill(c, h[:]); err != nil {
		return m, err
	}
	count, chunks := int(h[5]), int(binary.LittleEndian.Uint16(h[6:]))
	m.op, m.waitMS = op(h[4]), binary.LittleEndian.Uint32(h[8:])
	width := binary.LittleEndian.Uint32(h[12:])
	m.token = token(h[16:])
	if binary.LittleEndian.Uint32(h[:]) != wireMagic || m.op < opLookup || m.op > opAbandon ||
		count == 0 || count > maxMedia || chunks < count || chunks > maxChunks || width == 0 || width > maxWidth {
		return m, errProtocol
	}
	body := make([]byte, count*itemLen+4*chunks)
	if err := m.fill(c, body); err != nil {
		return m, noEOF(err)
	}
	return m, m.parse(body, count, chunks, width)
}

func (m *message) parse(body []byte, count, chunks int, width uint32) error {
	tokens := make([]uint32, chunks)
	for i := range tokens {
		tokens[i] = binary.LittleEndian.Uint32(body[count*itemLen+4*i:])
	}
	m.items = make([]item, count)
	for i := range m.items {
		b, it := body[i*itemLen:], &m.items[i]
		n := int(binary.LittleEndian.Uint16(b[2:]))
		if n == 0 || n > len(tokens) {
			return errProtocol
		}
		it.media = Media{Kind(b[0]), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])}
		it.partial = b[1]&flagPartial != 0
		it.encodeUS = binary.LittleEndian.Uint32(b[12:])
		it.offset, it.bytes = binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		it.ident = Ident(b[32:itemLen])
		it.layout = Layout{width, tokens[:n:n]}
		tokens = tokens[n:]
		if (it.media.Kind != Image && it.media.Kind != Audio) || it.layout.Bytes() == 0 || it.offset > 1<<40 || it.bytes > 1<<40 {
			return errProtocol
		}
	}
	if len(tokens) != 0 {
		return errProtocol
	}
	return nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fill reads len(b) bytes. The first descriptor received becomes m.file; others are closed.
func (m *message) fill(c *net.UnixConn, b []byte) error {
	oob := make([]byte, syscall.CmsgSpace(4*4))
	for got := 0; got < len(b); {
		n, oobn, _, _, err := c.ReadMsgUnix(b[got:], oob)
		m.keep(oob[:oobn])
		switch {
		case err != nil:
			return err
		case n == 0 && got == 0:
			return io.EOF
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		got += n
	}
	return nil
}

func (m *message) keep(oob []byte) {
	if len(oob) == 0 {
		return
	}
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if f := os.NewFile(uintptr(fd), "media"); m.file == nil {
				m.file = f
			} else {
				_ = f.Close()
			}
		}
	}
}

func (m *message) close() {
	if m.file != nil {
		_ = m.file.Close()
	}
}

// An itemResult is the result for one item; entry is set for a hit.
type itemResult struct {
	status itemStatus
	ident  Ident
	entry  *Entry
}

// writeReply sends the reply to a message. It passes the floats of all hits in one sealed memory file, which the engine
// maps.
func writeReply(c *net.UnixConn, o op, results []itemResult) error {
	b := make([]byte, replyHeaderLen+len(results)*resultLen)
	binary.LittleEndian.PutUint32(b, wireMagic)
	b[4], b[5] = byte(o)|replyBit, byte(len(results))
	var parts [][]byte
	var size uint64
	for i, r := range results {
		p := b[replyHeaderLen+i*resultLen:]
		p[0] = byte(r.status)
		copy(p[24:resultLen], r.ident[:])
		if r.entry == nil {
			continue
		}
		binary.LittleEndian.PutUint64(p[8:], size)
		binary.LittleEndian.PutUint64(p[16:], uint64(len(r.entry.Floats)))
		parts = append(parts, r.entry.Floats)
		size += (uint64(len(r.entry.Floats)) + floatAlign - 1) / floatAlign * floatAlign
	}
	binary.LittleEndian.PutUint64(b[8:], size)
	var oob []byte
	if size > 0 {
		f, err := sealedFile(parts, floatAlign)
		if err != nil {
			return fmt.Errorf("shared memory: %w", err)
		}
		defer func() { _ = f.Close() }()
		oob = syscall.UnixRights(int(f.Fd()))
	}
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}
