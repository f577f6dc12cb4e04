// A page that was opened as a file may not read others for the lines around a match.
if (location.protocol === 'file:') {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
