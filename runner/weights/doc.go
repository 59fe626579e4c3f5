// Package weights brings the files of models that lie elsewhere onto the host, into a folder of its own that is bounded
// in bytes, from which engines read them.
//
// Words: a location is where weights come from, s3:// or hf://; a pull fetches what a location names; an entry is the folder
// that holds it; a hold keeps an entry from being removed while an engine reads it.
//
// On disk, below the cache's folder:
//
//	.lock                   held by the process that owns the cache
//	.pulling/…              pulls in progress; what is there at the start is rubbish
//	ENTRY/.weights.json     what the entry holds and where it came from
//	ENTRY/…                 its files, under the names that their source gave them
//
// The time of last use is the modification time of the entry's folder, so that ls explains what goes first. Folders that
// lack a .weights.json are not the cache's and are left alone.
//
// What holds:
//   - An entry appears by one rename, after all its files were written, compared with their checksums and synced. Nothing
//     of a pull that failed, or whose process was killed, is ever seen as an entry.
//   - One pull at a time fetches a location; whoever wants it meanwhile waits for it. A pull ends when nobody waits for it.
//   - A pull reserves its room first. Entries that nobody holds or is about to make room, the one used longest ago
//     first; when they are not enough, none is removed and the pull fails with ErrFull.
//   - An entry is used without asking its source again. What changes there is seen under another name: a new key, another
//     revision.
//   - Neither errors nor logs hold a token, a signature or the query of a URL.
package weights
