// Package weights fetches the files of models that lie elsewhere into a folder on the host, bounded in bytes.
//
// A location is where weights come from, hf:// or s3://; an entry is the folder that holds what a location names; a
// hold keeps an entry from being removed while an engine reads it.
//
//	.lock                      held by the process that owns the folder
//	.pulling/ENTRY/…           files of an unfinished pull; .progress says which ranges have arrived
//	ENTRY/.weights.json        what the entry holds and where it came from
//	ENTRY/…                    its files, under the names that their source gave them
//
// The modification time of an entry's folder is the time of its last use. Folders without a .weights.json are not the
// cache's and are left alone.
//
//   - An entry appears by one rename, after all its files were written, compared with their checksums and synced.
//   - One pull at a time fetches a location, and all who want it wait for it. It goes on when they leave. What has arrived
//     stays for the next pull, also over a restart, unless room is needed.
//   - A pull reserves its room first. Entries that nobody holds make room, the least recently used first. If they are not
//     enough, none is removed and the pull fails with ErrFull. A source that does not say a file's size is read in one
//     stream, for which room is made as it comes.
//   - An entry is used without asking its source again. A change there needs a new name: another key or revision.
//   - Neither errors nor logs contain a token, a signature or the query of a URL.
package weights
