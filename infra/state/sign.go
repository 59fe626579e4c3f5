package state

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"
)

// maxRecord is the most bytes of a signed record, a settings table or the catalogue, that are read from Redis.
const maxRecord = 16 << 20

// signer makes and checks the MACs of what others act on: the catalogue, the settings tables, the addresses of hosts. It
// remembers what it last found right, so that a record which somebody without the secret wrote changes nothing. It is safe
// for concurrent use.
type signer struct {
	key        []byte
	pool       string
	unverified bool
	report     func(record, reason string) // a record is refused, or with reason "" right again

	mu      sync.Mutex
	refused map[string]bool                    // records, by name
	count   uint64                             // times that a record began to be refused
	catalog catalogRecord                      // last right one
	tables  map[Setting]map[string]signedValue // last right entries
	addrs   map[string]string                  // last right address of each host
}

func newSigner(secret []byte, pool string, unverified bool, report func(record, reason string)) *signer {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("reveille state v1"))
	return &signer{
		key: m.Sum(nil), pool: pool, unverified: unverified, report: report,
		refused: map[string]bool{}, tables: map[Setting]map[string]signedValue{}, addrs: map[string]string{},
	}
}

// mac is the MAC of a record's parts: what it is, its key, and its content. The pool is always one of them.
func (s *signer) mac(parts ...string) string {
	m := hmac.New(sha256.New, s.key)
	var n [8]byte
	for _, part := range append([]string{s.pool}, parts...) {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		m.Write(n[:])
		m.Write([]byte(part))
	}
	return hex.EncodeToString(m.Sum(nil))
}

// ok reports whether mac is that of parts.
func (s *signer) ok(mac string, parts ...string) bool {
	return s.unverified || hmac.Equal([]byte(mac), []byte(s.mac(parts...)))
}

// judgeLocked keeps account of refused records; reason "" is a right one.
func (s *signer) judgeLocked(record, reason string) {
	if was := s.refused[record]; was == (reason != "") {
		return
	}
	if reason == "" {
		delete(s.refused, record)
	} else {
		s.refused[record] = true
		s.count++
	}
	s.report(record, reason)
}

// Why a record is refused.
const (
	reasonMAC   = "it is not signed with this pool's runner secret"
	reasonOlder = "it is older than one that was read before"
	reasonForm  = "it is no hash, or too large"
	reasonName  = "a name of a host, model or ticket is too long or not printable"
)

type catalogRecord struct {
	version, json string
	serial        uint64 // rises with every publication
	mac           string
}

func (s *signer) signCatalog(version, json string, serial uint64) catalogRecord {
	return catalogRecord{version, json, serial, s.mac("catalog", decimal(serial), version, json)}
}

// admitCatalog judges what Redis holds and returns the record to act on: that, or else the last right one.
func (s *signer) admitCatalog(r catalogRecord, readable bool) (out catalogRecord, right bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason := ""
	switch {
	case !readable:
		reason = reasonForm
	case r == (catalogRecord{}): // none, as after Redis was emptied
		s.judgeLocked("catalog", "")
		return r, true
	case !s.ok(r.mac, "catalog", decimal(r.serial), r.version, r.json):
		reason = reasonMAC
	case r.serial < s.catalog.serial:
		reason = reasonOlder
	}
	if s.judgeLocked("catalog", reason); reason != "" {
		return s.catalog, false
	}
	s.catalog = r
	return r, true
}

// admitTable judges a settings table and returns what to act on: right entries, and in place of each wrong one the last
// right one, if there was any.
func (s *signer) admitTable(table Setting, values, macs map[string]string, readable bool) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	record, last := "settings:"+string(table), s.tables[table]
	if !readable {
		s.judgeLocked(record, reasonForm)
		return valuesOf(last)
	}
	right, reason := make(map[string]signedValue, len(values)), ""
	for name, value := range values {
		e := signedValue{value, macs[name]}
		was, known := last[name]
		if known && e == was || s.ok(e.mac, "settings", string(table), name, value) { // snapshots read the same entries over and over
			right[name] = e
		} else if reason = reasonMAC; known {
			right[name] = was
		}
	}
	s.judgeLocked(record, reason)
	s.tables[table] = right
	return valuesOf(right)
}

// signedValue is one of a settings table with its MAC.
type signedValue struct{ value, mac string }

func valuesOf(table map[string]signedValue) map[string]string {
	out := make(map[string]string, len(table))
	for name, e := range table {
		out[name] = e.value
	}
	return out
}

// admitAddrs judges the addresses of a pool's hosts and leaves in each record the one to act on: that which is there, else
// the last right one, else none.
func (s *signer) admitAddrs(hosts map[string]*HostRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, h := range hosts {
		switch {
		case h.Addr == "": // asleep
		case s.ok(h.Fields["addr_mac"], "addr", name, h.Addr):
			s.judgeLocked("host:"+name, "")
			s.addrs[name] = h.Addr
		default:
			s.judgeLocked("host:"+name, reasonMAC)
			h.Addr = s.addrs[name]
		}
	}
}

// forgetHosts forgets what was refused of hosts that are gone.
func (s *signer) forgetHosts(hosts map[string]*HostRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for record := range s.refused {
		if name, is := strings.CutPrefix(record, "host:"); is && hosts[name] == nil {
			delete(s.refused, record)
		}
	}
}

// judgeNames judges whether every host, model and ticket of a snapshot has a name.
func (s *signer) judgeNames(right bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason := ""
	if !right {
		reason = reasonName
	}
	s.judgeLocked("names", reason)
}

// lastSerial is the highest serial of a right catalogue.
func (s *signer) lastSerial() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalog.serial
}

// Refused lists the records of Redis that the last look refused, sorted by name: "catalog", "settings:TABLE",
// "host:NAME" (its address) and "names" (of hosts, models and tickets). total counts how often a record began to be refused.
func (s *Store) Refused() (records []string, total uint64) {
	s.signer.mu.Lock()
	defer s.signer.mu.Unlock()
	return slices.Sorted(maps.Keys(s.signer.refused)), s.signer.count
}

// reportRefused logs a change in what is refused.
func (s *Store) reportRefused(record, reason string) {
	if len(record) > 128 {
		record = strings.ToValidUTF8(record[:128], "") + "…"
	}
	if reason == "" {
		s.log.Info("record in Redis is right again", "record", record)
		return
	}
	s.log.Error("record in Redis is refused, what was read before it counts", "record", record, "reason", reason)
}

// record reads a hash, and its MACs where they are a hash of their own. readable is false for what is no hash or too large.
func (s *Store) record(ctx context.Context, key string) (values, macs map[string]string, readable bool, err error) {
	out, err := s.eval(ctx, s.scripts.record, key, maxRecord)
	if err != nil {
		return nil, nil, false, err
	}
	values, macs, readable = signedTable(out)
	return values, macs, readable, nil
}

// signedTable reads what the function signed of the scripts returns.
func signedTable(reply any) (values, macs map[string]string, readable bool) {
	parts := list(reply)
	if len(parts) != 2 {
		return nil, nil, false
	}
	return fields(parts[0]), fields(parts[1]), true
}

// admitted is what to act on of a settings table that a script returned.
func (s *Store) admitted(table Setting, reply any) map[string]string {
	values, macs, readable := signedTable(reply)
	return s.signer.admitTable(table, values, macs, readable)
}
