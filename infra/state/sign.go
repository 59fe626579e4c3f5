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

// maxRecord bounds the signed records (settings tables and the catalogue) read from Redis, in bytes.
const maxRecord = 16 << 20

// signer makes and checks the MACs of records that others act on: the catalogue, the settings tables, the addresses of
// hosts. It remembers the last valid ones, so that a record written without the secret changes nothing. It is safe for
// concurrent use.
type signer struct {
	key        []byte
	pool       string
	unverified bool
	report     func(record, reason string) // reports a refused record, or with reason "" one that is valid again

	mu      sync.Mutex
	refused map[string]bool                    // refused records by name
	count   uint64                             // how often a record began to be refused
	catalog catalogRecord                      // last valid one
	tables  map[Setting]map[string]signedValue // last valid entries
	addrs   map[string]string                  // last valid address of each host
}

func newSigner(secret []byte, pool string, unverified bool, report func(record, reason string)) *signer {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("reveille state v1"))
	return &signer{
		key: m.Sum(nil), pool: pool, unverified: unverified, report: report,
		refused: map[string]bool{}, tables: map[Setting]map[string]signedValue{}, addrs: map[string]string{},
	}
}

// mac returns the MAC of a record's parts: its kind, its key and its content. The pool is always included.
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

// ok reports whether mac is the MAC of parts.
func (s *signer) ok(mac string, parts ...string) bool {
	return s.unverified || hmac.Equal([]byte(mac), []byte(s.mac(parts...)))
}

// judgeLocked updates the list of refused records; reason "" accepts the record.
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

// Reasons for refusing a record.
const (
	reasonMAC   = "it is not signed with this pool's runner secret"
	reasonOlder = "it is older than one that was read before"
	reasonForm  = "it is not a hash, or too large"
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

// admitCatalog checks the catalogue in Redis. It returns the record to use: that one, or else the last valid one.
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

// admitTable checks a settings table. It returns the valid entries, and for each invalid one the last valid one, if
// any.
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
		if known && e == was || s.ok(e.mac, "settings", string(table), name, value) { // most reads return the same entries again
			right[name] = e
		} else if reason = reasonMAC; known {
			right[name] = was
		}
	}
	s.judgeLocked(record, reason)
	s.tables[table] = right
	return valuesOf(right)
}

// signedValue is an entry of a settings table with its MAC.
type signedValue struct{ value, mac string }

func valuesOf(table map[string]signedValue) map[string]string {
	out := make(map[string]string, len(table))
	for name, e := range table {
		out[name] = e.value
	}
	return out
}

// admitAddrs checks the addresses of a pool's hosts and leaves in each record the one to use: the present one if it is
// valid, else the last valid one, else none.
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

// forgetHosts drops what is known about hosts that are gone.
func (s *signer) forgetHosts(hosts map[string]*HostRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for record := range s.refused {
		if name, is := strings.CutPrefix(record, "host:"); is && hosts[name] == nil {
			delete(s.refused, record)
		}
	}
}

// judgeNames records whether every host, model and ticket of a snapshot has a valid name.
func (s *signer) judgeNames(right bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason := ""
	if !right {
		reason = reasonName
	}
	s.judgeLocked("names", reason)
}

// lastSerial returns the highest serial of a valid catalogue.
func (s *signer) lastSerial() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalog.serial
}

// Refused lists the records in Redis that the last read refused, sorted by name: "catalog", "settings:TABLE",
// "host:NAME" (its address) and "names" (of hosts, models and tickets). total counts how often a record began to be
// refused.
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
		s.log.Info("record in Redis is valid again", "record", record)
		return
	}
	s.log.Error("record in Redis is refused; the last valid one stays in use", "record", record, "reason", reason)
}

// record reads a hash, and its MACs if they are in a separate hash. readable is false if it is not a hash or has more than
// most bytes.
func (s *Store) record(ctx context.Context, key string, most int) (values, macs map[string]string, readable bool, err error) {
	out, err := s.eval(ctx, s.scripts.record, key, most)
	if err != nil {
		return nil, nil, false, err
	}
	values, macs, readable = signedTable(out)
	return values, macs, readable, nil
}

// signedTable parses the result of the Lua function signed.
func signedTable(reply any) (values, macs map[string]string, readable bool) {
	parts := list(reply)
	if len(parts) != 2 {
		return nil, nil, false
	}
	return fields(parts[0]), fields(parts[1]), true
}

// admitted returns the entries to use from a settings table that a script returned.
func (s *Store) admitted(table Setting, reply any) map[string]string {
	values, macs, readable := signedTable(reply)
	return s.signer.admitTable(table, values, macs, readable)
}
